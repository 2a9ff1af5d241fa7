"""Real processes killed with SIGKILL: whatever the moment, the run ends with the same bits."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from processes import PATIENCE
from torch import nn
from training_parts import repeatable

import snip
from snip.data import Dataset, Split, load
from snip.training import Metrics, TrainConfig, train
from snip.training.metrics import read_metrics

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")

CONFIG = TrainConfig(iterations=120, lr_drops=(40, 80), batch_size=50, eval_every=6)
MOMENT = 60  # iteration at which a process dies that is told to


def work(data: Path, folder: Path, moment: str) -> None:
    """What each process does: train in `folder`, with a checkpoint after every single step."""
    torch.set_num_threads(1)
    parts = torch.load(data, weights_only=True)
    mnist = Dataset.from_splits("mnist", Split(*parts["train"]), Split(*parts["test"]), classes=10)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(24, 10),
    )  # fmt: skip
    snip.prune(model, next(iter(mnist.evaluation_batches(100))), sparsity=0.9)
    save, saved = torch.save, 0

    def between_line_and_checkpoint(metrics: Metrics) -> None:
        if moment == "after-line" and metrics.iteration == MOMENT:
            die()

    def while_saving(content: object, path: Path) -> None:
        nonlocal saved
        save(content, path)
        saved += 1
        if moment == "slowly":
            time.sleep(0.02)
        if saved == MOMENT and moment == "half-checkpoint":
            os.truncate(path, os.path.getsize(path) // 2)
            die()
        if saved == MOMENT and moment == "unplaced-checkpoint":
            die()

    torch.save = while_saving
    train(
        model, mnist, CONFIG,
        folder=folder, checkpoint_seconds=0, on_metrics=between_line_and_checkpoint,
    )  # fmt: skip
    save(model.state_dict(), folder / "weights.pt")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mnist = load("mnist").subset(1000, 300)
    path = tmp_path_factory.mktemp("data") / "mnist.pt"
    splits = {"train": mnist.train, "test": mnist.test}
    torch.save({n: (s.images.clone(), s.labels.clone()) for n, s in splits.items()}, path)
    return path


def start(data: Path, folder: Path, moment: str = "never") -> BaseProcess:
    # The server imports what takes long once (any optimiser wants dynamo): processes start fast.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["snip.training", "torch._dynamo", "pytest"])
    process = context.Process(target=work, args=(data, folder, moment))
    process.start()
    return process


def exit_code(process: BaseProcess) -> int | None:
    process.join(timeout=PATIENCE)
    return process.exitcode


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert exit_code(start(data, folder)) == 0
    return folder


def assert_same_outcome(folder: Path, undisturbed: Path) -> None:
    lines, true_lines = (
        repeatable(read_metrics(place / "metrics.jsonl")) for place in (folder, undisturbed)
    )
    assert lines == true_lines
    assert len(lines) == 20
    weights, true_weights = (
        torch.load(place / "weights.pt", weights_only=True) for place in (folder, undisturbed)
    )
    assert weights.keys() == true_weights.keys()
    assert all(torch.equal(value, true_weights[name]) for name, value in weights.items())
    assert not list(folder.glob(".snip-tmp-*"))


@pytest.mark.parametrize("moment", ["after-line", "half-checkpoint", "unplaced-checkpoint"])
def test_killed_at_the_worst_moments(
    data: Path, tmp_path: Path, undisturbed: Path, moment: str
) -> None:
    assert exit_code(start(data, tmp_path, moment)) == -signal.SIGKILL
    assert len(read_metrics(tmp_path / "metrics.jsonl")) >= 9
    assert exit_code(start(data, tmp_path)) == 0
    assert_same_outcome(tmp_path, undisturbed)


def test_killed_again_and_again_at_random(data: Path, tmp_path: Path, undisturbed: Path) -> None:
    chance, kills = random.Random(0), 0
    for _ in range(6):
        before, process = changed_at(tmp_path), start(data, tmp_path, "slowly")
        while changed_at(tmp_path) == before and process.is_alive():
            time.sleep(0.002)  # let it come as far as a new checkpoint
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        kills += exit_code(process) == -signal.SIGKILL
    assert exit_code(start(data, tmp_path)) == 0
    assert kills
    assert_same_outcome(tmp_path, undisturbed)


def changed_at(folder: Path) -> int:
    path = folder / "checkpoint.pt"
    return path.stat().st_mtime_ns if path.exists() else 0
