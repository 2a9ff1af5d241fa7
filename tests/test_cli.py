"""The command `snip`: a few cases as a real process, the rest through `main`."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from snip import Masks
from snip.cli import COMMANDS, main
from snip.cli.flags import RUN_FLAGS, TRAIN_FLAGS, run_config
from snip.models import build
from snip.runs import RunConfig
from snip.training import TrainConfig

SNIP = Path(sys.executable).with_name("snip")
SMALL = ["--iterations", "60", "--eval-every", "30", "--batch-size", "20", "--schedule", "short"]
RUN = ["run", "--model", "lenet-300-100", "--sparsity", "0.95", *SMALL]
OWN_NETWORK = """
from torch import nn

def small(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 8), nn.Linear(8, classes))

def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 3))

def nothing():
    return None

def bare():
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(784), nn.AdaptiveAvgPool1d(10))
"""

Snip = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test works in its own folder, with no data sets of the machine's user in sight."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.delenv("SNIP_DATA", raising=False)


@pytest.fixture
def snip(capsys: pytest.CaptureFixture[str]) -> Snip:
    """Run a command in this process: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    torch.set_num_threads(1)
    assert main([*RUN, "--folder", str(folder)]) == 0
    return folder


def process(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """Run the installed command."""
    return subprocess.run(
        [SNIP, *arguments], capture_output=True, text=True, check=False, **settings
    )


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


# -- as a process -----------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    # `snip` itself is put in by hand, so that this is about the command line alone.
    code = (
        "import sys, types, importlib.util as u; s = types.ModuleType('snip');"
        "s.__path__ = u.find_spec('snip').submodule_search_locations; sys.modules['snip'] = s;"
        "from snip.cli import main; code = main(['--help']);"
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, entry in COMMANDS.items():
        assert name in done.stdout
        assert entry.summary in done.stdout
    assert "snip demo" in done.stdout


def test_a_run_that_is_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    command = [SNIP, "run", "--model", "gru-s", "--sparsity", "0.9", "--eval-every", "20"]
    running = subprocess.Popen(
        [*command, "--folder", "it", "--threads", "1"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (Path("it") / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, error = running.communicate(timeout=60)
    assert running.returncode == 130, error
    assert "same command" in error
    assert "Traceback" not in error
    assert not (Path("it") / "result.json").exists()


def test_a_mistake_in_a_process_without_colours() -> None:
    done = process("run", "--model", "lenet-300", "--sparsity", "0.95", env=os.environ)
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown model 'lenet-300': did you mean 'lenet-300-100'")
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


# -- run --------------------------------------------------------------------------------------


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


def test_run_refuses_the_folder_of_another_configuration(snip: Snip, finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.iterdir()}
    code, _, error = snip(*RUN, "--lr", "0.05", "--folder", finished)
    assert code == 2
    assert "another configuration" in error
    assert "0.05" in error
    assert {path: path.read_bytes() for path in finished.iterdir()} == before


def test_dry_run_shows_and_writes_nothing(snip: Snip, finished: Path) -> None:
    code, out, _ = snip(*RUN, "--protocol", "redraw", "--init", "vs-h", "--dry-run")
    assert code == 0
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert shown["protocol"] == "redraw"
    assert shown["train_initializer"] == "vs-h"
    assert shown["train.lr_drops"] == "[20, 40]"
    assert shown["folder"].startswith("runs/lenet-300-100_mnist_snip-0.95_redraw_60it_seed0_")
    assert shown["folder"].endswith("(new)")
    assert files() == []
    assert snip(*RUN, "--folder", finished, "--dry-run")[1].endswith("(finished)\n")


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


def test_no_resume_starts_over(snip: Snip, finished: Path) -> None:
    before = (finished / "selected.safetensors").stat().st_mtime_ns
    code, _, note = snip(*RUN, "--folder", finished, "--no-resume")
    assert (code, note) == (0, "")
    assert (finished / "selected.safetensors").stat().st_mtime_ns > before


# -- flags ------------------------------------------------------------------------------------


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


# -- prune and inspect ------------------------------------------------------------------------


def test_prune_saves_the_masks_that_a_run_trains_with(snip: Snip, finished: Path) -> None:
    flags = ["--model", "lenet-300-100", "--sparsity", "0.95", "--score-batch-size", "20"]
    code, out, _ = snip("prune", *flags, "--out", "m.safetensors", "--save-weights", "w.st")
    assert code == 0
    assert "fc1.weight" in out or "266,610" in out
    masks = Masks.load("m.safetensors")
    assert masks == Masks.load(finished / "masks.safetensors")
    weights = load_file("w.st")
    assert all(not weights[name][~mask].any() for name, mask in masks.items())


def test_prune_takes_weights(snip: Snip) -> None:
    model = build("lenet-300-100", seed=5)
    save_file(model.state_dict(), "in.safetensors")
    torch.save(model.state_dict(), "in.pt")
    flags = ["prune", "--model", "lenet-300-100", "--sparsity", "0.99"]
    for source in ("in.safetensors", "in.pt"):
        assert snip(*flags, "--weights", source, "--out", f"{source}.m", "--seed", "5")[0] == 0
    assert snip(*flags, "--out", "drawn.m", "--seed", "5")[0] == 0
    assert Masks.load("in.safetensors.m") == Masks.load("in.pt.m") == Masks.load("drawn.m")
    save_file(build("lenet-5-caffe").state_dict(), "other.safetensors")
    code, _, error = snip(*flags, "--weights", "other.safetensors", "--out", "no.m")
    assert code == 2
    assert "another network" in error
    assert not Path("no.m").exists()


def test_output_takes_the_place_of_ordinary_files_only(snip: Snip) -> None:
    os.mkfifo("pipe")
    code, _, error = snip(*PRUNE, "--out", "pipe")
    assert code == 2
    assert "no ordinary file" in error
    assert Path("pipe").is_fifo()


def test_inspect_a_run(snip: Snip, finished: Path) -> None:
    code, out, _ = snip("inspect", finished)
    assert code == 0
    assert "finished" in out
    assert "13,331 of 266,610" in out
    data = json.loads(snip("inspect", finished, "--json")[1])
    assert data["kind"] == "run"
    assert data["result"]["kept"] == data["masks"]["kept"] == 13_331
    assert data["config"]["model"] == "lenet-300-100"
    assert sum(p["kept"] for p in data["parameters"]) == 13_331


def test_inspect_masks(snip: Snip, finished: Path) -> None:
    code, out, _ = snip("inspect", finished / "masks.safetensors")
    assert code == 0
    assert "95.00%" in out
    data = json.loads(snip("inspect", finished / "masks.safetensors", "--json")[1])
    assert data["kind"] == "masks"
    assert data["provenance"]["method"] == "snip"
    assert data["report"] is not None


def test_inspect_masks_of_an_unknown_network(snip: Snip) -> None:
    masks = Masks({"a.weight": torch.tensor([[True, False]])}, {"model": "evil.module:function"})
    masks.save("m.safetensors")
    code, out, _ = snip("inspect", "m.safetensors")
    assert code == 0
    assert "a.weight" in out
    assert "50.00%" in out
    assert json.loads(snip("inspect", "m.safetensors", "--json")[1])["report"] is None


@pytest.mark.parametrize(
    ("name", "kind"), [("selected.safetensors", "weights"), ("checkpoint.pt", "checkpoint")]
)
def test_inspect_counts_the_zeros_of_weights(
    snip: Snip, finished: Path, name: str, kind: str
) -> None:
    assert snip("inspect", finished / name)[0] == 0
    data = json.loads(snip("inspect", finished / name, "--json")[1])
    assert data["kind"] == kind
    assert data["total"] == 266_610
    assert data["kept"] <= 13_331
    assert data["sparsity"] == pytest.approx(0.95, abs=0.001)


def test_inspect_draws_a_picture(snip: Snip, finished: Path) -> None:
    assert snip("inspect", finished, "--picture", "p.png")[0] == 0
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_inspect_says_how_far_a_run_is(snip: Snip, finished: Path) -> None:
    Path("half").mkdir()
    for name in ("config.json", "metrics.jsonl", "masks.safetensors"):
        (Path("half") / name).write_bytes((finished / name).read_bytes())
    code, out, _ = snip("inspect", "half")
    assert code == 0
    assert "60 of 60 iterations" in out
    assert json.loads(snip("inspect", "half", "--json")[1])["finished"] is False


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"model": "vgg-d"}', '{"modle": "vgg-d"}'])
def test_inspect_refuses_a_damaged_configuration(snip: Snip, text: str) -> None:
    Path("run").mkdir()
    Path("run/config.json").write_text(text)
    code, out, error = snip("inspect", "run")
    assert (code, out) == (2, "")
    assert "run/config.json is damaged" in error


def test_masks_that_are_not_of_the_network_they_name(snip: Snip) -> None:
    named = {"model": "lenet-300-100", "dataset": "mnist"}
    Masks({"a": torch.tensor([True])}, named).save("m.safetensors")
    assert snip("inspect", "m.safetensors")[0] == 0
    code, _, error = snip("inspect", "m.safetensors", "--model", "lenet-300-100")
    assert code == 2
    assert "another model" in error


def test_models_and_data(snip: Snip) -> None:
    assert "266,610" in snip("models")[1]
    assert len(json.loads(snip("models", "--json")[1])) == 24
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


# -- mistakes ---------------------------------------------------------------------------------

LENET = ["--model", "lenet-300-100"]
HALF = ["--sparsity", "0.5"]
RUN_HALF = ["run", *LENET, *HALF]
PRUNE = ["prune", *LENET, *HALF]
MISTAKES = {
    "percentage": (["run", *LENET, "--sparsity", "95"], "write 0.95"),
    "sparsity of one": (["run", *LENET, "--sparsity", "1"], "[0, 1)"),
    "negative sparsity": (["run", *LENET, "--sparsity=-0.1"], "[0, 1)"),
    "NaN": (["run", *LENET, "--sparsity", "nan"], "[0, 1)"),
    "no number": (["run", *LENET, "--sparsity", "many"], "'--sparsity'"),
    "no sparsity": (["run", *LENET], "--sparsity"),
    "command": (["rnu"], "Did you mean 'run'"),
    "flag": (["run", *LENET, "--sparsty", "0.5"], "--sparsity"),
    "model": (["run", "--model", "vgg-e", *HALF], "did you mean"),
    "data set": ([*RUN_HALF, "--dataset", "mnits"], "did you mean 'mnist'"),
    "model on another set": (["run", "--model", "lstm-s", "--dataset", "cifar-10", *HALF], "lstm"),
    "missing data": (["run", "--model", "vgg-d", *HALF], "--data-dir"),
    "data folder": ([*RUN_HALF, "--dataset", "fashion-mnist", "--data-dir", "no"], "not exist"),
    "protocol": ([*RUN_HALF, "--protocol", "redrawn"], "did you mean 'redraw'"),
    "initializer": ([*RUN_HALF, "--init", "vsh"], "did you mean 'vs-h'"),
    "other initializer": ([*RUN_HALF, "--init-train", "rn"], "redraw"),
    "reduction": ([*RUN_HALF, "--reduction", "sum"], "abs_of_sum"),
    "scope": ([*RUN_HALF, "--scope", "local"], "global"),
    "optimizer": ([*RUN_HALF, "--optimizer", "adm"], "did you mean 'adam'"),
    "schedule": ([*RUN_HALF, "--schedule", "shrt"], "did you mean 'short'"),
    "iterations": ([*RUN_HALF, "--iterations", "0"], "at least 1"),
    "learning rate": ([*RUN_HALF, "--lr", "nan"], "lr is nan"),
    "drops": ([*RUN_HALF, "--lr-drops", "1000;2000"], "with commas"),
    "batch": ([*RUN_HALF, "--batch-size", "100000"], "ask for fewer"),
    "scoring batches": ([*RUN_HALF, "--score-batches", "1000"], "ask for fewer"),
    "seed": ([*RUN_HALF, "--seed", "-1"], "seed is -1"),
    "device": ([*RUN_HALF, "--device", "gpu"], "'gpu'"),
    "threads": ([*RUN_HALF, "--threads", "0"], "threads is 0"),
    "own file": (["run", "--model", "mine_wrong.py:small", *HALF], "'mine_wrong:small'"),
    "own module": (["run", "--model", "mine_not:small", *HALF], "no module 'mine_not'"),
    "own function": (["run", "--model", "mine_wrong:smal", *HALF], "did you mean 'small'"),
    "own classes": (["run", "--model", "mine_wrong:narrow", *HALF], "(2, 10)"),
    "own nothing": (["run", "--model", "mine_wrong:nothing", *HALF], "NoneType"),
    "nothing to prune": (["run", "--model", "mine_wrong:bare", *HALF], "no prunable parameters"),
    "prune nothing": (["prune", *LENET, "--sparsity", "0", "--out", "m"], "sparsity is 0"),
    "prune nowhere": (PRUNE, "--out"),
    "prune into a folder": ([*PRUNE, "--out", "."], "is a folder"),
    "prune under a file": ([*PRUNE, "--out", "mine_wrong.py/m"], "inside a file"),
    "no weights": ([*PRUNE, "--out", "m", "--weights", "none.st"], "no file none.st"),
    "torn weights": ([*PRUNE, "--out", "m", "--weights", "mine_wrong.py"], "damaged"),
    "weights and redraw": (
        [*PRUNE, "--out", "m", "--weights", "mine_wrong.py", "--protocol", "redraw"],
        "use one of them",
    ),
    "demo percentage": (["demo", "--sparsity", "95"], "write 0.95"),
    "demo of nothing": (["demo", "--sparsity", "0"], "sparsity is 0"),
    "demo engine": (["demo", "--engine", "spars"], "did you mean 'sparse'"),
    "inspect nothing": (["inspect", "none"], "no file none"),
    "inspect a folder": (["inspect", "."], "no run folder"),
    "inspect a text": (["inspect", "mine_wrong.py"], "neither masks nor weights"),
}


@pytest.mark.parametrize(("arguments", "phrase"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_mistake_is_a_sentence_and_changes_nothing(
    snip: Snip, arguments: list[str], phrase: str
) -> None:
    Path("mine_wrong.py").write_text(OWN_NETWORK)
    code, out, error = snip(*arguments)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert phrase in error
    assert error.count("\n") == 1
    left = [name for name in files() if "__pycache__" not in name]
    assert left == ["mine_wrong.py"]


@pytest.mark.parametrize("name", ["masks.safetensors", "checkpoint.pt", "selected.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_inspect_refuses_a_torn_file(snip: Snip, finished: Path, name: str, share: float) -> None:
    whole = (finished / name).read_bytes()
    Path(name).write_bytes(whole[: int(len(whole) * share)])
    code, out, error = snip("inspect", name)
    assert (code, out) == (2, "")
    assert error.startswith("error: ")
    assert name in error


def test_inspect_runs_no_code_of_a_file(snip: Snip) -> None:
    torch.save(build("lenet-300-100"), "whole_model.pt")  # a pickle of classes
    code, _, error = snip("inspect", "whole_model.pt")
    assert code == 2
    assert "without running code" in error


def test_a_diverging_run_is_a_sentence(snip: Snip) -> None:
    code, _, error = snip(*RUN, "--lr", "1e30")
    assert code == 2
    assert "Try a smaller lr" in error
    assert "Traceback" not in error
