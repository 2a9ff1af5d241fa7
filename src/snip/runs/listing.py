"""Runs in a folder: how far each has come, which are at work, and what the finished ones found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from snip.common import files
from snip.common.errors import FileError
from snip.common.lock import is_held
from snip.runs import folder as layout
from snip.runs.config import RunConfig
from snip.runs.result import RunResult
from snip.training.journal import METRICS
from snip.training.metrics import Metrics, read_metrics

RUNNING = "running"
CLUSTER = ".ray.json"  # in a folder of runs: the state of the cluster that is at work there
STATES = (layout.FINISHED, RUNNING, layout.STOPPED)
DAMAGED = "damaged"  # said of a folder that cannot be read, of which there is no `Listed`


@dataclass(frozen=True)
class Listed:
    """One run in a folder of runs."""

    folder: Path
    config: RunConfig
    state: str  # one of STATES
    phase: str  # the training that is under way or was the last: "" is the run's own
    done: int  # its steps so far
    steps: int | None  # of all its steps; None if not known before it ends
    seconds: float  # spent in this training
    result: RunResult | None = None
    history: tuple[Metrics, ...] = ()  # of an unfinished run: the evaluations of this training

    @property
    def progress(self) -> str:
        """Its state, and how far the training that is under way has come, in words."""
        if self.state == layout.FINISHED:
            return self.state
        total = "" if self.steps is None else f" of {self.steps:,}"
        evaluated = (
            f"{self.done:,}{total} iterations evaluated" if self.done else "no evaluation yet"
        )
        return f"{self.state}, {f'{self.phase}: ' if self.phase else ''}{evaluated}"

    @property
    def seconds_left(self) -> float | None:
        """Seconds that this training still takes at the pace so far; None if not known."""
        if self.state == layout.FINISHED:
            return 0.0
        if not self.done or self.steps is None:
            return None
        return self.seconds / self.done * max(self.steps - self.done, 0)


def listed(folder: Path) -> Listed:
    """The run in one folder."""
    config = layout.read_config(folder)
    steps = config.last_training.iterations
    if layout.state_of(folder) == layout.FINISHED:
        result = RunResult.read(folder)
        return Listed(
            folder, config, layout.FINISHED, "", steps, steps, result.seconds, result=result
        )
    phase, history = _latest(folder)
    state = RUNNING if is_held(folder) else layout.STOPPED
    done, seconds = (history[-1].iteration, history[-1].seconds) if history else (0, 0.0)
    known = None if phase else steps
    return Listed(folder, config, state, phase, done, known, seconds, history=history)


def run_folders(root: Path) -> list[Path]:
    """The folders of runs in `root`, in the order of their names."""
    if not files.is_folder(root):
        raise FileError(f"there is no folder {root}: give --out, the folder of run folders.")
    found = [root / name for name in files.names_in(root)]
    return [path for path in found if files.exists(path / layout.CONFIG)]


def _latest(folder: Path) -> tuple[str, tuple[Metrics, ...]]:
    """The name of the training that came last, and its evaluations."""
    if (folder / METRICS).is_file():
        return "", tuple(read_metrics(folder / METRICS))
    written = [phase for phase in layout.phase_folders(folder) if (phase / METRICS).is_file()]
    if not written:
        return "", ()
    phase = max(written, key=lambda phase: (phase / METRICS).stat().st_mtime)
    return phase.name, tuple(read_metrics(phase / METRICS))
