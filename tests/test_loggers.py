"""Loggers: each evaluation once, however a run came to its end; read back by TensorBoard itself."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from cli_fixtures import RUN, SMALL, Snip
from processes import start_run, wait_for_metrics
from tensorboard.backend.event_processing.directory_watcher import DirectoryWatcher
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from training_parts import CONFIG, StoppedError, chancy_network, stopping_at

from snip.common.errors import FileError
from snip.data import Dataset, load
from snip.experiments.sweep.work import DONE, Place, attempt
from snip.runs import RunConfig, RunResult, run
from snip.training import Metrics, TrainConfig, train
from snip.training.metrics import read_metrics
from snip.training.tensorboard import TensorBoard

pytestmark = pytest.mark.usefixtures("empty_folder")
TRAIN = TrainConfig(iterations=60, lr_drops=(30,), batch_size=20, eval_every=20)
CONFIGURATION = RunConfig("lenet-300-100", 0.95, train=TRAIN, engine="dense")


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(2000, 500)


def read_back(folder: Path, inside: str = "tensorboard") -> EventAccumulator:
    events = EventAccumulator(str(folder / inside), purge_orphaned_data=False)
    events.Reload()
    return events


def points(folder: Path, inside: str = "tensorboard") -> dict[str, list[tuple[int, float]]]:
    """Every point in the files, without TensorBoard's own way of dropping some of them."""
    events = read_back(folder, inside)
    return {
        tag: [(event.step, float(event.tensor_proto.float_val[0])) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
        if "config" not in tag
    } | {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def expected(history: Sequence[Metrics]) -> dict[str, list[tuple[int, float]]]:
    fields = {
        "loss/train": "train_loss", "error/train": "train_error", "loss/valid": "valid_loss",
        "error/valid": "valid_error", "loss/test": "test_loss", "error/test": "test_error",
        "lr": "lr", "sparsity": "sparsity",
    }  # fmt: skip
    return {
        tag: [(line.iteration, pytest.approx(getattr(line, field), rel=1e-6)) for line in history]
        for tag, field in fields.items()
    }


def test_a_run_is_read_back_point_by_point(tmp_path: Path) -> None:
    result = run(CONFIGURATION, folder=tmp_path / "run", progress=False, log=["tensorboard"])
    assert points(result.folder) == expected(result.history())
    assert [step for step, _ in points(result.folder)["lr"]] == [20, 40, 60]
    text = read_back(result.folder).Tensors("configuration/text_summary")[0]
    shown = text.tensor_proto.string_val[0].decode()
    lines = "\n".join(line.removeprefix("    ") for line in shown.split("\n"))
    assert json.loads(lines) == CONFIGURATION.to_dict()


def test_every_phase_of_a_method_is_read_back(tmp_path: Path) -> None:
    train = TrainConfig(lr=0.02, iterations=20, lr_drops=(10,), batch_size=20, eval_every=10)
    config = RunConfig("lenet-300-100", 0.9, method="lwc", engine="dense", train=train)
    result = run(config, tmp_path, progress=False, log=["tensorboard"])
    phases = [path.name for path in (result.folder / "phases").iterdir()]
    assert len(phases) > 1

    def check() -> None:
        assert points(result.folder) == expected(result.history())
        first = RunResult.read(tmp_path / config.trained_first.folder_name).history()
        logs = result.folder / "tensorboard"
        folders = {path.name for path in logs.iterdir() if path.is_dir()}
        assert folders == {"first training", *phases}
        assert points(logs, "first training") == expected(first)
        for name in phases:
            history = read_metrics(result.folder / "phases" / name / "metrics.jsonl")
            assert points(logs, name) == expected(history)

    check()
    shutil.rmtree(result.folder / "tensorboard")
    run(config, tmp_path, progress=False, log=["tensorboard"])  # a finished run is given whole
    check()
    # One that was stopped in its last training has its phases behind it.
    shutil.rmtree(result.folder / "tensorboard")
    (result.folder / "result.json").unlink()
    run(config, tmp_path, progress=False, log=["tensorboard"])
    check()


def test_nothing_else_changes(tmp_path: Path) -> None:
    plain = run(CONFIGURATION, folder=tmp_path / "plain", progress=False)
    logged = run(CONFIGURATION, folder=tmp_path / "logged", progress=False, log=["tensorboard"])
    for name in ("model.safetensors", "masks.safetensors", "config.json"):
        assert (plain.folder / name).read_bytes() == (logged.folder / name).read_bytes()


@pytest.mark.parametrize("stop_at", [25, 45, 60])
def test_a_resumed_training_has_no_double_points(
    mnist: Dataset, tmp_path: Path, stop_at: int
) -> None:
    def training(**settings: object) -> Sequence[Metrics]:
        loggers = [TensorBoard(tmp_path, CONFIG.to_dict())]
        return train(
            chancy_network(), mnist, CONFIG, folder=tmp_path, loggers=loggers, **settings
        ).history  # type: ignore[arg-type]

    with pytest.raises(StoppedError):  # checkpoints are rarer than evaluations: some are redone
        training(step=stopping_at(stop_at), checkpoint_seconds=1e9)
    assert points(tmp_path)["error/test"]
    history = training()
    assert points(tmp_path) == expected(history)
    assert len(history) == 3


def test_a_killed_run_has_no_double_points(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    running = start_run(folder, "--log", "tensorboard", "--iterations", "100000")
    try:
        wait_for_metrics(folder, running)
    finally:
        running.kill()
        running.wait()
        running.stderr.close()  # type: ignore[union-attr]
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(StoppedError):
        run(
            RunConfig.from_dict(config), folder=folder, progress=False, log=["tensorboard"],
            on_metrics=stop_after(4),
        )  # fmt: skip
    assert points(folder) == expected(read_metrics(folder / "metrics.jsonl"))


def stop_after(count: int):
    seen: list[Metrics] = []

    def on_metrics(metrics: Metrics) -> None:
        seen.append(metrics)
        if len(seen) == count:
            raise StoppedError

    return on_metrics


def test_a_finished_run_is_logged_whole_and_once(snip: Snip, finished_run: Path) -> None:
    history = read_metrics(finished_run / "metrics.jsonl")
    for _ in range(2):
        code, _, error = snip(*RUN, "--folder", finished_run, "--log", "tensorboard")
        assert code == 0
        assert "finished already" in error
        assert points(finished_run) == expected(history)
    files = DirectoryWatcher(str(finished_run / "tensorboard"), EventFileLoader)
    assert len(list(files.Load())) == 1 + 1 + 8 * len(history)  # the version and the text
    code, out, _ = snip("inspect", finished_run)
    assert code == 0
    assert "as the run left them" in out


def test_a_missing_library_is_told_before_anything_starts(
    snip: Snip, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    code, _, error = snip(*RUN, "--folder", "run", "--log", "tensorboard")
    assert code == 2
    assert "logging to TensorBoard needs tensorboard (" in error
    assert "pip install 'snip-prune[tensorboard]'" in error
    assert not Path("run").exists()


def test_an_unknown_logger_is_told_before_anything_starts(snip: Snip) -> None:
    code, _, error = snip(*RUN, "--folder", "run", "--log", "tensorbord")
    assert code == 2
    assert "did you mean 'tensorboard'?" in error
    assert not Path("run").exists()


def test_a_place_that_cannot_be_written(snip: Snip) -> None:
    Path("run").mkdir()
    Path("run/.lock").touch()
    code, _, error = snip(
        "run", "--model", "lenet-300-100", "--sparsity", "0.9", *SMALL, "--folder", "run"
    )
    assert code == 0, error
    Path("run/tensorboard").write_text("in the way")
    with pytest.raises(FileError, match="cannot log to run/tensorboard"):
        TensorBoard(Path("run"), {}).begin([])


def test_runs_of_an_experiment_are_logged(tmp_path: Path) -> None:
    place = Place(tmp_path, log=("tensorboard",))
    assert attempt(CONFIGURATION, place).kind == DONE
    folder = tmp_path / CONFIGURATION.folder_name
    assert points(folder) == expected(RunResult.read(folder).history())
