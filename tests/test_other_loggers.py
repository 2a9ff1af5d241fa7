"""W&B, offline, and MLflow, in files: each evaluation once, read back from what they wrote."""

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import RUN, Snip
from needed import needed
from processes import PATIENCE

from snip.training.metrics import read_metrics

needed("mlflow")
needed("wandb")
pytestmark = pytest.mark.usefixtures("empty_folder")

Points = dict[str, list[tuple[int, float]]]
FIELDS = ("train_loss", "train_error", "valid_loss", "valid_error", "test_loss", "test_error")
BLOCK, HEADER, START = 32768, 7, 7  # of the file that W&B writes, a log as LevelDB's


@pytest.fixture(autouse=True)
def _nobody_elses_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def records(path: Path) -> Iterator[bytes]:
    """The records of a log: each in one part (1), or in a first (2), middle (3) and last (4)."""
    data, at, whole = path.read_bytes(), START, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if at + HEADER + length > len(data):  # still being written
            return
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):
            yield whole
            whole = b""


def whole_log(path: Path) -> list[Any]:
    """All records, once the last is there: W&B's own process writes them after `finish`."""
    from wandb.proto.wandb_internal_pb2 import Record

    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = [Record.FromString(part) for part in records(path)]
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.1)
    raise AssertionError(f"{path} was never finished")


def from_wandb(folder: Path) -> tuple[Points, dict[str, object]]:
    (path,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    points: Points = {}
    config: dict[str, object] = {}
    for record in whole_log(path):
        for one in record.run.config.update:
            config[one.key or ".".join(one.nested_key)] = json.loads(one.value_json)
        found = {i.key or ".".join(i.nested_key): i.value_json for i in record.history.item}
        for name, value in found.items():
            if not name.startswith("_"):
                points.setdefault(name, []).append((int(found["_step"]), json.loads(value)))
    return points, config


def from_mlflow(folder: Path) -> tuple[Points, dict[str, object]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlflow").resolve().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("snip").experiment_id])
    assert run.info.status == "FINISHED"
    points = {
        name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    return points, run.data.params


Read = Callable[[Path], tuple[Points, dict[str, object]]]


@pytest.mark.parametrize(("name", "read"), [("wandb", from_wandb), ("mlflow", from_mlflow)])
def test_a_run_is_read_back_point_by_point_and_once(snip: Snip, name: str, read: Read) -> None:
    for _ in range(2):  # a finished run is logged whole again, in place of the first time
        code, _, error = snip(*RUN, "--folder", "run", "--log", name)
        assert code == 0, error
    points, config = read(Path("run"))
    history = read_metrics(Path("run/metrics.jsonl"))
    expected = {
        f"{field.partition('_')[2]}/{field.partition('_')[0]}": field for field in FIELDS
    } | {"lr": "lr", "sparsity": "sparsity"}
    assert points == {
        shown: [(line.iteration, pytest.approx(getattr(line, field))) for line in history]
        for shown, field in expected.items()
    }
    assert [step for step, _ in points["lr"]] == [30, 60]
    assert config["model"] == "lenet-300-100"
    assert float(str(config["sparsity"])) == 0.95
    code, out, _ = snip("inspect", "run")
    assert code == 0
    assert "as the run left them" in out


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_library_is_told_before_anything_starts(
    snip: Snip, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    code, _, error = snip(*RUN, "--folder", "run", "--log", name)
    assert code == 2
    assert f"pip install 'snip-prune[{name}]'" in error
    assert not Path("run").exists()


def test_a_place_that_cannot_be_written(snip: Snip, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("taken").write_text("in the way")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", Path("taken").resolve().as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    code, _, error = snip(*RUN, "--folder", "run", "--log", "mlflow")
    assert code == 2
    assert "cannot log to MLflow at file:" in error
    assert "without --log the run goes on" in error


def test_a_folder_with_an_apostrophe_is_logged_once() -> None:
    from mlflow import MlflowClient

    from snip.training.mlflow import MLflow

    folder = Path("o'brien's \"run\" `1` \\")
    folder.mkdir()
    for _ in range(2):
        logger = MLflow(folder, {"a": 1})
        logger.begin([])
        logger.end()
    client = MlflowClient(tracking_uri=(folder / "mlflow").resolve().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("snip").experiment_id])
    assert run.info.run_name == folder.name


def test_wandb_that_takes_no_more_is_a_sentence(snip: Snip) -> None:
    from snip.common.errors import FileError
    from snip.training.wandb import WandB

    assert snip(*RUN, "--folder", "run")[0] == 0
    (line, *_) = read_metrics(Path("run/metrics.jsonl"))
    logger = WandB(Path("run"), {})
    logger.begin([])
    logger._run.finish()  # as when its own process is lost
    with pytest.raises(FileError, match=r"cannot log to W&B in run/wandb: .*without --log"):
        logger.record(line)
    logger.end()
