"""The command `snip`: a few cases as a real process, the rest through `main`."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fixtures import OWN_NETWORK, RUN, SMALL, SNIP, Snip, files, process
from processes import PATIENCE, hear_signals, wait_for_metrics

from snip.cli import COMMANDS
from snip.cli.configuration import run_config
from snip.cli.flags import RUN_FLAGS, TRAIN_FLAGS, rows
from snip.cli.options import flag_rows
from snip.common.errors import InputError
from snip.runs import RunConfig
from snip.runs.listing import run_folders
from snip.runs.sums import changes
from snip.training import TrainConfig

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from snip.cli import main; code = main(['--help']);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, entry in COMMANDS.items():
        assert name in done.stdout
        assert entry.summary in done.stdout
    assert "snip demo" in done.stdout


def test_help_of_every_command_and_mistakes_in_flags_load_no_torch() -> None:
    code = (
        "import sys; from snip.cli import COMMANDS, main;"
        "heard = [main([name, '--help']) for name in COMMANDS];"
        "heard += [main(['run', '--modle', 'x']) - 2];"
        "assert 'torch' not in sys.modules; sys.exit(any(heard))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--picture" in done.stdout
    assert "--score-batches" in done.stdout
    assert "--model" in done.stderr


def test_the_file_of_flags_is_what_the_tables_say() -> None:
    assert flag_rows() == rows(), "run `python -m snip.cli.flags`, which writes the file anew"


def test_a_run_that_is_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    command = [SNIP, "run", "--model", "gru-s", "--sparsity", "0.9", "--eval-every", "20"]
    running = subprocess.Popen(
        [*command, "--folder", "it", "--threads", "1"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,
    )
    try:
        wait_for_metrics(Path("it"), running)
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=PATIENCE)
    finally:
        running.kill()
    assert running.returncode == 130, error
    assert "same command" in error
    assert "Traceback" not in error
    assert not (Path("it") / "result.json").exists()
    assert (Path("it") / "checkpoint.pt").exists()  # long before the first one is due


def test_a_mistake_in_a_process_without_colours() -> None:
    done = process("run", "--model", "lenet-300", "--sparsity", "0.95", env=os.environ)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown model 'lenet-300': did you mean 'lenet-300-100'")
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_run_writes_a_folder_and_the_same_command_finds_it(snip: Snip) -> None:
    code, out, _ = snip(*RUN)
    assert code == 0
    assert "95.00%" in out
    assert "13,331 of 266,610" in out
    (folder,) = Path("runs").iterdir()
    assert str(folder) in out
    assert json.loads((folder / "result.json").read_text())["kept"] == 13_331
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}

    code, again, note = snip(*RUN)
    assert code == 0
    assert again == out
    assert "finished already" in note
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_run_refuses_the_folder_of_another_configuration(snip: Snip, finished_run: Path) -> None:
    before = contents(finished_run)
    code, _, error = snip(*RUN, "--lr", "0.05", "--folder", finished_run)
    assert code == 2
    assert "another configuration" in error
    assert "0.05" in error
    assert contents(finished_run) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Of all files in it and below: other tests may have logged the same run."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_dry_run_shows_and_writes_nothing(snip: Snip, finished_run: Path) -> None:
    code, out, _ = snip(*RUN, "--protocol", "redraw", "--init", "vs-h", "--dry-run")
    assert code == 0
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert shown["protocol"] == "redraw"
    assert shown["train_initializer"] == "vs-h"
    assert shown["train.lr_drops"] == "[20, 40]"
    assert shown["folder"].startswith("runs/lenet-300-100_mnist_snip-0.95_redraw_60it_seed0_")
    assert shown["folder"].endswith("(new)")
    assert files() == []
    assert snip(*RUN, "--folder", finished_run, "--dry-run")[1].endswith("(finished)\n")


def test_a_drop_beyond_the_end_is_remarked(snip: Snip) -> None:
    flags = ["--model", "lenet-300-100", "--sparsity", "0.5", "--iterations", "30000"]
    _, _, note = snip("run", *flags, "--dry-run")
    assert "end before the learning rate drops at 50,000" in note
    assert "--schedule short" in note
    assert snip("run", *flags, "--schedule", "short", "--dry-run")[2] == ""


def test_run_trains_a_network_of_the_users(snip: Snip) -> None:
    Path("mine_to_train.py").write_text(OWN_NETWORK)
    own = ["--model", "mine_to_train:small", "--sparsity", "0.9"]
    code, out, _ = snip("run", *own, *SMALL)
    assert code == 0
    assert "637 of 6,370" in out
    (folder,) = Path("runs").iterdir()
    assert snip("inspect", folder)[0] == 0
    assert snip("inspect", folder, "--model", "mine_to_train:small")[0] == 0


def test_no_resume_starts_over(snip: Snip, finished_run: Path) -> None:
    before = (finished_run / "selected.safetensors").stat().st_mtime_ns
    code, _, note = snip(*RUN, "--folder", finished_run, "--no-resume")
    assert (code, note) == (0, "")
    assert (finished_run / "selected.safetensors").stat().st_mtime_ns > before


def test_every_field_has_a_flag_with_help_and_no_other_does() -> None:
    assert {f.name for f in dataclasses.fields(RunConfig)} - {"train"} == set(RUN_FLAGS)
    assert {f.name for f in dataclasses.fields(TrainConfig)} - {"seed"} == set(TRAIN_FLAGS)


def test_no_flag_means_the_dataclass_defaults() -> None:
    assert run_config({"model": "vgg-d", "sparsity": 0.5}) == RunConfig("vgg-d", 0.5)


def test_flags_reach_both_configurations() -> None:
    flags = {"model": "lenet-5-caffe", "sparsity": 0.9, "seed": 3, "lr": 0.01, "batch_size": 50}
    config = run_config(flags | {"lr_drops": "10,20", "iterations": 30})
    assert (config.seed, config.training.seed, config.score_batch_size) == (3, 3, 50)
    assert (config.training.lr, config.training.lr_drops) == (0.01, (10, 20))
    assert run_config(flags | {"lr_drops": "none"}).training.lr_drops == ()


def test_a_floor_is_a_number_or_auto() -> None:
    own = {"model": "mine:build", "sparsity": 0.9}
    found = [run_config({**own, "floor": given}).floor for given in ("0", "0.01", "auto", None)]
    assert found == [0, 0.01, "auto", "auto"]
    with pytest.raises(InputError, match="floor is 'most'"):
        run_config({**own, "floor": "most"})


def test_the_short_schedule_is_a_tenth_or_what_is_asked() -> None:
    flags = {"model": "lenet-300-100", "sparsity": 0.9}
    assert run_config(flags, schedule="short").training.lr_drops == (2500, 5000)
    short = run_config(flags | {"iterations": 300}, schedule="short").training
    assert (short.iterations, short.lr_drops) == (300, (100, 200))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_runnable_examples(snip: Snip, name: str) -> None:
    code, out, _ = snip(name, "--help")
    assert code == 0
    assert COMMANDS[name].summary in out
    assert out.count(f" snip {name}") >= 2


def test_models_and_data(snip: Snip) -> None:
    assert "266,610" in snip("models")[1]
    assert len(json.loads(snip("models", "--json")[1])) == 35
    code, out, _ = snip("data")
    assert code == 0
    assert "inside the package" in out
    assert "FOLDER/FashionMNIST/raw" in out
    assert json.loads(snip("data", "--json")[1])["mnist"] == "inside the package"


def test_data_tells_where_a_set_was_found(snip: Snip) -> None:
    raw = Path("sets/FashionMNIST/raw")
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").touch()
    assert f"fashion-mnist  {raw}" in snip("data", "--data-dir", "sets")[1]


def test_version(snip: Snip) -> None:
    assert snip("--version")[:2] == (0, f"snip {__import__('snip').__version__}\n")


def test_demo_in_short(snip: Snip) -> None:
    code, out, _ = snip("demo", "--iterations", "40")
    assert code == 0
    assert "1.07 MB" in out
    assert "13,331" in out
    assert "runs/demo/survivors.png" in out
    assert Path("runs/demo/survivors.png").read_bytes().startswith(b"\x89PNG")
    assert Path("runs/demo/compact.safetensors").is_file()
    runs = run_folders(Path("runs/demo"))
    assert [str(changes(folder)) for folder in runs] == ["as the run left them"] * 2
