"""A run's folder: its files, and whether it is this run's, finished, or somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from snip.common import files
from snip.common.checks import differences
from snip.common.errors import FileError
from snip.common.lock import require_folder
from snip.runs.config import RunConfig
from snip.training.journal import CHECKPOINT, ENGINE, MASKS, METRICS
from snip.training.state import Weights

CONFIG = "config.json"
REPORT = "report.json"
RESULT = "result.json"
SUMS = "sums.json"  # of all other files, when the run is finished
MODEL = "model.safetensors"  # the weights after the last step
SELECTED = "selected.safetensors"  # the weights that validation selects
FIRST_COST = "first.json"  # steps and seconds of the training that a method which trains began with
PHASES = "phases"  # a folder with one for each training of a method that trains
NEW = "new"
BEGUN = "begun"  # there is no checkpoint yet
STOPPED = "stopped"  # after a checkpoint
FINISHED = "finished"
Value = TypeVar("Value")
# `clear` deletes the result first: without it a folder counts as unfinished.
ALL = (RESULT, SUMS, CHECKPOINT, METRICS, MODEL, SELECTED, REPORT, MASKS, ENGINE)


def require_own(folder: Path, config: RunConfig) -> None:
    """Refuse a folder that holds another run, or anything else."""
    require_folder(folder)
    if not files.exists(folder / CONFIG):
        if files.exists(folder) and any(name[0] != "." for name in files.names_in(folder)):
            raise FileError(
                f"{folder} exists and is no run folder (it has no {CONFIG}): choose another."
            )
        return
    changed = differences(read_config(folder).identity(), config.identity())
    if changed:
        raise FileError(
            f"run folder {folder} holds another configuration ({changed}): "
            "choose another folder, or delete this one."
        )


def read_report(folder: Path, name: str, kind: type[Value]) -> Value:
    """One entry of what a run's report says; a report without it is refused as damaged."""
    path = folder / REPORT
    with files.reading(path):
        found = files.read_json(path)[name]
        if not isinstance(found, kind):
            raise TypeError(f"{name} is {found!r:.40}")
        return found


def state_of(folder: Path) -> str:
    """How far the run in `folder` has come."""
    if files.exists(folder / RESULT):
        return FINISHED
    if files.exists(folder / CHECKPOINT) or files.exists(folder / PHASES):
        return STOPPED
    return BEGUN if files.exists(folder / CONFIG) else NEW


def clear(folder: Path) -> None:
    """Delete this run's files, and nothing else, to start over. The caller holds the lock."""
    for name in ALL:
        files.remove(folder / name)


def phase_folders(folder: Path) -> list[Path]:
    """The folders of the trainings before a run's last, in the order of their names."""
    phases = folder / PHASES
    return [phases / name for name in files.names_in(phases)] if files.is_folder(phases) else []


def clear_phases(folder: Path, *, keep: tuple[str, ...] = ()) -> None:
    """Delete the files of a run's phases but those to keep. The caller holds the lock."""
    for phase in phase_folders(folder):
        for file in (CHECKPOINT, METRICS, MASKS, ENGINE):
            if file not in keep:
                files.remove(phase / file)


def write_weights(path: Path, weights: Weights) -> None:
    """Write weights under their own names: they load into a plain model without this library."""
    plain = {name: value.contiguous() for name, value in weights.items()}
    files.write_tensors(path, plain, {})


def read_config(folder: Path) -> RunConfig:
    """The configuration of the run in `folder`."""
    data = files.read_json(folder / CONFIG)
    with files.reading(folder / CONFIG):
        return RunConfig.from_dict(data)
