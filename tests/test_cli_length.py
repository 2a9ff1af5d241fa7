"""How long a run trains: epochs, and one's own network that nobody said a length for."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import LENET, Snip
from processes import SEES_THIS_TREE

from snip.cli import length
from snip.cli.configuration import run_config
from snip.cli.length import spoken
from snip.common.errors import InputError

pytestmark = pytest.mark.usefixtures("empty_folder")
# A step takes at least 20 ms, so that the paper's 75,000 of them take at least 25 minutes; an
# epoch of batches of 20,000 has two of them.
SLOW = """
import time
from torch import nn

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)

def build():
    return Slow(nn.AvgPool2d(7), nn.Flatten(), nn.Linear(16, 10))
"""
OWN = ["run", "--model", "slow_one:build", "--sparsity", "0.5", "--engine", "dense"]
OWN += ["--batch-size", "20000", "--score-batch-size", "20", "--eval-every", "1000"]
MNIST = {"model": "lenet-300-100", "sparsity": 0.5}


def iterations() -> list[int]:
    configs = [json.loads(path.read_text()) for path in Path("runs").glob("*/config.json")]
    return sorted(config["train"]["iterations"] for config in configs)


def on_terminal(answers: str) -> tuple[int, str]:
    """The command in a process with a terminal, and what it said there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "snip", *OWN]
    environment = os.environ | SEES_THIS_TREE
    with subprocess.Popen(
        command, stdin=theirs, stderr=theirs, stdout=subprocess.DEVNULL, env=environment
    ) as running:
        os.close(theirs)
        os.write(ours, answers.encode())
        said = b""
        try:
            while part := os.read(ours, 1 << 16):
                said += part
        except OSError:  # how the end of a terminal is told
            pass
    os.close(ours)
    return running.returncode, said.decode()


def test_without_a_terminal_ones_own_network_trains_ten_epochs(snip: Snip) -> None:
    Path("slow_one.py").write_text(SLOW)
    code, shown, note = snip(*OWN, "--dry-run")
    assert (code, "20it" in shown, "10 epochs" in note) == (0, True, True)
    code, _, note = snip(*OWN)
    assert code == 0
    assert note.count("\n") == 1
    assert "10 epochs (20 iterations)" in note
    assert "--epochs N" in note
    assert "--schedule paper" in note
    assert iterations() == [20]
    assert "finished already" in snip(*OWN)[2]
    _, shown, note = snip(*OWN, "--schedule", "paper", "--dry-run")
    assert "75000" in shown
    assert note == ""


def test_on_a_terminal_the_length_is_asked_for() -> None:
    Path("slow_one.py").write_text(SLOW)
    code, said = on_terminal("many\n2\n")
    assert code == 0, said
    assert "The paper's schedule: 75,000 iterations, about" in said
    assert "'many' is no number of epochs" in said
    assert "--iterations 4" in said
    assert iterations() == [4]
    code, said = on_terminal("\n")
    offered = int(said.partition("Epochs to train [")[2].partition(";")[0])  # the clock says which
    assert offered in length.OFFERED
    found = sorted([4, 2 * offered])
    assert (code, iterations()) == (0, found)
    code, said = on_terminal("")  # what was begun is not asked for again
    assert (code, iterations()) == (0, found)
    assert "finished already" in said
    assert "Epochs to train" not in said


def test_named_networks_keep_the_papers_schedule() -> None:
    assert run_config(MNIST).training.iterations == 75_000


def test_epochs_squeeze_the_schedule() -> None:
    train = run_config(MNIST, epochs=2).training
    assert (train.iterations, train.lr_drops) == (1080, (360, 720))  # 54,000 images by 100
    flags = {**MNIST, "batch_size": 64, "validation": 0.0}
    assert run_config(flags, epochs=3).training.iterations == 3 * (60_000 // 64)
    with pytest.raises(InputError, match="one of them"):
        run_config({**MNIST, "iterations": 5}, epochs=2)
    with pytest.raises(InputError, match="epochs is 0"):
        run_config(MNIST, epochs=0)


def test_an_epoch_is_what_the_trainer_calls_one(snip: Snip) -> None:
    assert snip("run", *LENET, "--sparsity", "0", "--epochs", "1", "--batch-size", "9000")[0] == 0
    (line,) = next(Path("runs").glob("*/metrics.jsonl")).read_text().splitlines()
    assert (json.loads(line)["iteration"], json.loads(line)["epoch"]) == (6, 1.0)


def test_optimisers_bring_their_own_rates() -> None:
    adamw = run_config({**MNIST, "optimizer": "adamw"}).training
    assert (adamw.optimizer, adamw.lr, adamw.weight_decay) == ("adamw", 1e-3, 1e-2)
    given = run_config({**MNIST, "optimizer": "adamw", "lr": 0.02}).training
    assert (given.lr, given.weight_decay) == (0.02, 1e-2)
    sgd = run_config(MNIST).training
    assert (sgd.optimizer, sgd.lr, sgd.weight_decay) == ("sgd", 0.1, 5e-4)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(20, "under a minute"), (600, "about 10 min"), (12_000, "about 3 h 20 min")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert spoken(seconds) == words
