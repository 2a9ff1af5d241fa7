"""Many runs in a few processes: each run once, in order, and again later if others are at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from snip.common.errors import FileError
from snip.experiments.work import BUSY, DONE, FULL, Outcome, Place, start
from snip.runs import RunConfig
from snip.runs.folder import FINISHED, state_of
from snip.training.interrupts import end_by, signals_noted

TICK = 0.5  # seconds between two looks at the runs
AGAIN = 5.0  # seconds until a run is tried again that another command is at
SAVING = 120.0  # seconds that a worker has to save its work when it is told to end


@dataclass
class Task:
    """A run to do. `first` is the folder of the run that must be finished before."""

    label: str
    config: RunConfig
    first: str | None = None
    not_before: float = 0.0

    @property
    def name(self) -> str:
        """The run's folder."""
        return self.config.folder_name


@dataclass
class Worker:
    """A process and the run that it is at."""

    process: BaseProcess
    pipe: Connection
    task: Task


Report = Callable[[Task, Outcome], None]
Watch = Callable[[Sequence[Task], Sequence[Task]], None]  # of those at work and those that wait


class Pool:
    """The runs that wait, those at work, and the processes."""

    def __init__(self, tasks: Sequence[Task], jobs: int, place: Place, report: Report) -> None:
        self.waiting, self.working = list(tasks), list[Worker]()
        self._idle: list[tuple[BaseProcess, Connection]] = []
        self._jobs, self._place, self._report = jobs, place, report
        self._failed: dict[str, str] = {}

    def run(self, watch: Watch) -> None:
        """Do all tasks. A signal ends the workers, which save their work, and then this process."""
        with signals_noted() as asked_to_end:
            try:
                while self.waiting or self.working:
                    self._assign()
                    pipes = [worker.pipe for worker in self.working]
                    if pipes:
                        wait(pipes, TICK)
                    else:
                        time.sleep(TICK)
                    self._collect()
                    watch([worker.task for worker in self.working], self.waiting)
                    if (number := asked_to_end()) is not None:
                        raise end_by(number)
            finally:
                self._stop()

    def _assign(self) -> None:
        """Give a run to each free worker."""
        while len(self.working) < self._jobs:
            task = self._next()
            if task is None:
                return
            process, pipe = self._idle.pop() if self._idle else start(self._place)
            pipe.send(task.config)
            self.working.append(Worker(process, pipe, task))

    def _next(self) -> Task | None:
        now = time.monotonic()
        for task in list(self.waiting):
            if task.first in self._failed:
                self.waiting.remove(task)
                reason = f"its first training came to nothing: {self._failed[task.first]}"
                self._report(task, Outcome("failed", reason))
            elif task.not_before <= now and self._ready(task):
                self.waiting.remove(task)
                return task
        return None

    def _ready(self, task: Task) -> bool:
        return task.first is None or state_of(self._place.out / task.first) == FINISHED

    def _collect(self) -> None:
        """Take the outcomes of the workers that are done."""
        for worker in list(self.working):
            ended = not worker.process.is_alive()
            if worker.pipe.poll():
                try:
                    outcome = worker.pipe.recv()
                    self._idle.append((worker.process, worker.pipe))
                except EOFError:
                    outcome = _died(worker)
            elif ended:
                outcome = _died(worker)
            else:
                continue
            self.working.remove(worker)
            self._take(worker.task, outcome)

    def _take(self, task: Task, outcome: Outcome) -> None:
        if outcome.kind == BUSY:
            task.not_before = time.monotonic() + AGAIN
            self.waiting.append(task)
            return
        if outcome.kind != DONE:
            self._failed[task.name] = outcome.sentence
        self._report(task, outcome)
        if outcome.kind == FULL:  # which every other run would find too
            raise FileError(f"{outcome.sentence} All runs were stopped.")

    def _stop(self) -> None:
        for worker in self.working:
            worker.process.terminate()
        for _, pipe in self._idle:
            pipe.close()
        for process in [worker.process for worker in self.working] + [p for p, _ in self._idle]:
            process.join(SAVING)
            if process.is_alive():
                process.kill()


def _died(worker: Worker) -> Outcome:
    worker.process.join()
    code = worker.process.exitcode
    return Outcome(
        "failed",
        f"the process of {worker.task.name} ended by itself (exit code {code}), perhaps for want "
        "of memory: the same command goes on from its last checkpoint; try fewer --jobs.",
    )
