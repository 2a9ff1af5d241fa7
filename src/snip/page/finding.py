"""Which run folders a user means, and all that can be read of one, however far it came."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from snip.common.errors import FileError, InputError
from snip.common.files import exists, is_folder, names_in, read_json, reading
from snip.common.lock import is_held
from snip.masks import Masks
from snip.reports.report import Report
from snip.runs import RunConfig, RunResult
from snip.runs.folder import (
    CONFIG,
    FINISHED,
    REPORT,
    RESULT,
    phase_folders,
    read_config,
    state_of,
)
from snip.runs.listing import Listed, listed, run_folders
from snip.runs.sums import Changes, changes
from snip.training.journal import ENGINE, MASKS, METRICS
from snip.training.metrics import Metrics, read_metrics

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Run:
    """What a run's folder holds. A damaged part is None, and `problems` says so."""

    folder: Path
    config: RunConfig | None = None
    under_way: Listed | None = None  # how far it has come, if it is not finished
    result: RunResult | None = None
    history: tuple[Metrics, ...] = ()  # of its own training, or of the phase that it is in
    masks: Masks | None = None
    report: Report | None = None
    engine: str | None = None  # the one that runs, before there is a result
    changed: Changes | None = None  # None: not known
    problems: tuple[str, ...] = ()

    def without(self, *parts: str, problem: str) -> Run:
        """The run as if it had none of these parts, and why."""
        gone = {part: () if part == "history" else None for part in parts}
        return replace(self, **gone, problems=(*self.problems, problem))  # type: ignore[arg-type]


def chosen_folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders among and directly inside these folders, each once."""
    found: dict[Path, Path] = {}
    for path in paths:
        if not is_folder(path):
            raise FileError(
                f"there is no run at {path}: give a run's folder, or a folder of run folders."
            )
        runs = [path] if exists(path / CONFIG) else run_folders(path)
        if not runs:
            raise FileError(
                f"there is no run in {path}: neither it nor a folder in it has a {CONFIG}. "
                "`snip run` makes one."
            )
        for place in runs:
            found.setdefault(place.resolve(), place)
    return list(found.values())


def read_run(folder: Path) -> Run:
    """All that can be read of one run; nothing of it is executed or changed."""
    problems: list[str] = []

    def part(name: str, read: Callable[[], T]) -> T | None:
        try:
            return read() if exists(folder / name) else None
        except InputError as error:
            problems.append(str(error))
            return None

    finished = state_of(folder) == FINISHED
    under_way = None if finished else part(CONFIG, lambda: listed(folder))
    if under_way is None:
        history = part(METRICS, lambda: tuple(read_metrics(folder / METRICS))) or ()
    else:
        history = under_way.history
    return Run(
        folder=folder,
        config=part(CONFIG, lambda: read_config(folder)),
        under_way=under_way,
        result=part(RESULT, lambda: RunResult.read(folder, verify=False)),
        history=history,
        masks=part(MASKS, lambda: Masks.load(folder / MASKS)),
        report=part(REPORT, lambda: _read_report(folder / REPORT)),
        engine=part(ENGINE, lambda: str(read_json(folder / ENGINE).get("engine"))),
        changed=part(RESULT, lambda: changes(folder)) if finished else None,
        problems=tuple(dict.fromkeys(problems)),
    )


def _read_report(path: Path) -> Report:
    data = read_json(path)
    with reading(path):
        return Report.from_dict(data)


class Reader:
    """Reads runs again and again, but only those whose files have changed since the last time."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[object, Run]] = {}

    def read(self, folder: Path) -> Run:
        """What is in the folder now."""
        stamp = _stamp(folder)
        known = self._known.get(folder)
        if known is None or known[0] != stamp:
            known = self._known[folder] = stamp, read_run(folder)
        return known[1]


def _stamp(folder: Path) -> object:
    """What changes when a file of the run does, or when a process begins or ends work on it."""
    return is_held(folder), [_files(place) for place in (folder, *phase_folders(folder))]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """The names, sizes and times of the files in a folder."""
    found = []
    for name in names_in(folder) if is_folder(folder) else ():
        try:
            status = (folder / name).stat()
        except OSError:  # it was deleted a moment ago
            continue
        found.append((name, status.st_size, status.st_mtime_ns))
    return found
