"""A run is one walk: each thing happens once, and a mistake is told before anything slow."""

import errno
import fcntl
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import RUN, Snip

from snip.common.errors import FileError, InputError
from snip.common.lock import locked
from snip.data import Dataset
from snip.masks import Masks
from snip.models.networks import LeNet300100
from snip.runs import RunConfig, folder, run
from snip.training import TrainConfig

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each part of a run really happens."""
    found: Counter[str] = Counter()

    def counted(owner: Any, name: str, what: str) -> None:
        whole = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found[what] += 1
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    counted(LeNet300100, "__init__", "networks built")
    counted(Dataset, "from_splits", "data sets loaded")
    counted(Dataset, "identity", "data sets cut")
    counted(Masks, "save", "masks written")
    counted(Masks, "load", "masks read")
    check = folder.require_own

    def checked(place: Path, config: RunConfig) -> None:
        found["folder checks"] += 1
        with pytest.raises(FileError, match="in use"), locked(place):
            pass  # the check is worth something only while nobody else may write
        check(place, config)

    monkeypatch.setattr(folder, "require_own", checked)
    return found


WALK = import_module("snip.runs.run")  # the function `run` of snip.runs hides it
# Commands import late: this module would keep the check that a test has put in place for ever.
import_module("snip.cli.results")
ONCE = {
    "networks built": 1,
    "data sets loaded": 1,
    "data sets cut": 1,
    "masks written": 1,
    "folder checks": 1,
}


@pytest.mark.parametrize("flags", [[], ["--no-resume"]])
def test_every_part_of_a_run_happens_once(
    snip: Snip, calls: Counter[str], flags: list[str]
) -> None:
    assert snip(*RUN, "--folder", "it", *flags)[0] == 0
    assert calls == ONCE


def test_a_resumed_run_reads_its_masks_instead(snip: Snip, calls: Counter[str]) -> None:
    assert snip(*RUN, "--folder", "it")[0] == 0
    (Path("it") / "result.json").unlink()
    calls.clear()
    code, _, note = snip(*RUN, "--folder", "it")
    assert code == 0
    assert "goes on from its last checkpoint" in note
    assert calls == Counter({**ONCE, "masks written": 0, "masks read": 1})


def test_a_finished_run_is_read_without_a_lock(snip: Snip, finished_run: Path) -> None:
    (finished_run / ".lock").unlink()
    before = sorted(finished_run.iterdir())
    assert snip(*RUN, "--folder", finished_run)[0] == 0
    assert sorted(finished_run.iterdir()) == before


def test_pruning_alone_builds_and_loads_once(snip: Snip, calls: Counter[str]) -> None:
    assert snip("prune", *RUN[1:5], "--out", "m.safetensors")[0] == 0
    expected = {"networks built": 1, "data sets loaded": 1, "masks written": 1}
    assert calls == expected


def never(*args: object, **kwargs: object) -> None:
    raise AssertionError("this must not have been reached")


@pytest.mark.parametrize(
    ("config", "reason", "not_reached"),
    [
        (RunConfig("no_such_module:net", 0.5), "no module 'no_such_module'", "load"),
        (
            RunConfig("lenet-300-100", 0.5, train=TrainConfig(batch_size=60_000)),
            "batch_size is 60000, but mnist has only 54000",
            "prune_network",
        ),
        (
            RunConfig("lenet-300-100", 0, train=TrainConfig(batch_size=60_000)),
            "batch_size is 60000, but mnist has only 54000",
            "train_held",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_slow_or_written(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    config: RunConfig,
    reason: str,
    not_reached: str,
) -> None:
    monkeypatch.setattr(WALK, not_reached, never)
    with pytest.raises(InputError, match=reason):
        run(config, tmp_path / "deep" / "runs")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_told_before_anything_slow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(WALK, "draw", never)
    with locked(tmp_path), pytest.raises(FileError, match="in use by another process"):
        run(RunConfig("lenet-300-100", 0.5), folder=tmp_path)


def refused() -> None:
    raise ZeroDivisionError


def failing(folder: Path, work: Callable[[], object] = refused) -> None:
    with pytest.raises(ZeroDivisionError), locked(folder):
        work()


def test_a_lock_leaves_no_trace_of_work_that_wrote_nothing(tmp_path: Path) -> None:
    failing(tmp_path / "deep" / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "thesis.tex").write_text("mine")
    failing(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def written_and_refused() -> None:
        (tmp_path / "run" / "config.json").touch()
        refused()

    failing(tmp_path / "run", written_and_refused)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "config.json"]


def test_a_lock_whose_file_was_just_removed_is_not_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lock = fcntl.flock

    def too_late(file: Any, operation: int) -> None:
        (tmp_path / ".lock").unlink()  # as another process does whose work was refused
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    with pytest.raises(FileError, match="in use by another process"), locked(tmp_path):
        never()


def test_a_file_system_without_locks_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unsupported(file: Any, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with locked(tmp_path):
        (tmp_path / "config.json").touch()
