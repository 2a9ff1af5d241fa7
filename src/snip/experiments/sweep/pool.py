"""Many runs in a few processes: each run once, in order, and again later if others are at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from snip.common.console import remark
from snip.common.errors import FileError
from snip.experiments.sweep.work import (
    BUSY,
    DIVERGED,
    DONE,
    FAILED,
    FULL,
    LOST,
    Outcome,
    Place,
    Task,
)
from snip.runs.folder import FINISHED, state_of
from snip.training.interrupts import end_by, signals_noted

TICK = 0.5  # seconds between two looks at the runs
AGAIN = 5.0  # seconds until a run is tried again that another command is at, or that was lost
TRIES = 3  # of a run whose worker is lost


class Workers(Protocol):
    """Where runs are done: processes of this machine, or a cluster."""

    def start(self, task: Task) -> Any:
        """Begin a run. Returns its worker, which has the task as `task`."""

    def wait(self, working: list[Any], seconds: float) -> None:
        """Return when one of these workers may be done, or after so many seconds."""

    def outcome(self, worker: Any) -> Outcome | None:
        """How a worker's run ended; None while it is at work."""

    def watched(self, at_work: int, waiting: int) -> None:
        """So many runs are at work, and so many wait."""

    def stop(self, working: list[Any]) -> None:
        """End these workers, which save their work, and all that is idle."""


Report = Callable[[Task, Outcome], None]
Watch = Callable[[Sequence[Task], Sequence[Task]], None]  # of those at work and those that wait


class Pool:
    """The runs that wait, and those at work."""

    def __init__(
        self, tasks: Sequence[Task], jobs: int, place: Place, report: Report, workers: Workers
    ) -> None:
        self.waiting, self.working = list(tasks), list[Any]()
        self._jobs, self._place, self._report = jobs, place, report
        self._workers = workers
        self._failed: dict[str, Outcome] = {}

    def run(self, watch: Watch) -> None:
        """Do all tasks. A signal ends the workers, which save their work, and then this process."""
        with signals_noted() as asked_to_end:
            try:
                while self.waiting or self.working:
                    self._assign()
                    if self.working:
                        self._workers.wait(self.working, TICK)
                    else:
                        time.sleep(TICK)
                    self._collect()
                    self._workers.watched(len(self.working), len(self.waiting))
                    watch([worker.task for worker in self.working], self.waiting)
                    if (number := asked_to_end()) is not None:
                        raise end_by(number)
            finally:
                self._workers.stop(self.working)

    def _assign(self) -> None:
        """Give a run to each free worker."""
        while len(self.working) < self._jobs:
            task = self._next()
            if task is None:
                return
            self.working.append(self._workers.start(task))

    def _next(self) -> Task | None:
        now = time.monotonic()
        for task in list(self.waiting):
            if task.first in self._failed:
                self.waiting.remove(task)
                first = self._failed[task.first]
                reason = f"its first training came to nothing: {first.sentence}"
                self._report(task, Outcome(DIVERGED if first.kind == DIVERGED else FAILED, reason))
            elif task.not_before <= now and self._ready(task):
                self.waiting.remove(task)
                task.is_elsewhere = False  # as far as anybody knows
                return task
            elif task.first is not None and not self._is_expected(task.first):
                # It was finished when this was planned, and somebody has removed it since.
                needed = task.config.trained_first
                self.waiting.insert(0, Task(f"first training of {needed.model}", needed))
                return self._next()
        return None

    def _is_expected(self, name: str) -> bool:
        """Whether a run is finished, at work, or waits to be done."""
        known = [*self.waiting, *(worker.task for worker in self.working)]
        return self._is_finished(name) or any(task.name == name for task in known)

    def _ready(self, task: Task) -> bool:
        return task.first is None or self._is_finished(task.first)

    def _is_finished(self, name: str) -> bool:
        return state_of(self._place.out / name) == FINISHED

    def _collect(self) -> None:
        """Take the outcomes of the workers that are done."""
        for worker in list(self.working):
            outcome = self._workers.outcome(worker)
            if outcome is not None:
                self.working.remove(worker)
                self._take(worker.task, outcome)

    def _take(self, task: Task, outcome: Outcome) -> None:
        if outcome.kind == BUSY:
            task.not_before, task.is_elsewhere = time.monotonic() + AGAIN, True
            self.waiting.append(task)
            return
        if outcome.kind == LOST:
            task.tries += 1
            if task.tries < TRIES:
                remark(f"warning: {outcome.sentence}: it goes on from its last checkpoint.")
                # What it wanted, memory most of all, may be there again in a while.
                task.not_before = time.monotonic() + AGAIN * task.tries
                self.waiting.insert(0, task)
                return
            outcome = Outcome(FAILED, f"{outcome.sentence}, {TRIES} times: look at its machine.")
        if outcome.kind != DONE:
            self._failed[task.name] = outcome
        self._report(task, outcome)
        if outcome.kind == FULL:  # which every other run would find too
            raise FileError(f"{outcome.sentence} All runs were stopped.")
