"""Processes of this machine that do one run after another for the command that started them."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from snip.experiments.sweep.work import LOST, SAVING, Outcome, Place, Task, attempt
from snip.training.interrupts import end_now


@dataclass
class Worker:
    """A process and the run that it is at."""

    process: BaseProcess
    pipe: Connection
    task: Task


class LocalWorkers:
    """Starts processes as they are needed, and gives each the next run when it is done."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: list[tuple[BaseProcess, Connection]] = []

    def start(self, task: Task) -> Worker:
        """Begin a run."""
        while self._idle:
            process, pipe = self._idle.pop()
            with suppress(OSError):  # one that has died while nothing was to do
                pipe.send(task.config)
                return Worker(process, pipe, task)
        process, pipe = start(self._place)
        pipe.send(task.config)
        return Worker(process, pipe, task)

    def wait(self, working: list[Worker], seconds: float) -> None:
        """Return when one of them may be done, or after so many seconds."""
        wait([worker.pipe for worker in working], seconds)

    def outcome(self, worker: Worker) -> Outcome | None:
        """How a run ended; None while it is at work."""
        ended = not worker.process.is_alive()
        if worker.pipe.poll():
            try:
                outcome = worker.pipe.recv()
            except (EOFError, OSError):  # it ended, perhaps before it had read its task
                return _died(worker)
            self._idle.append((worker.process, worker.pipe))
            return outcome
        return _died(worker) if ended else None

    def watched(self, at_work: int, waiting: int) -> None:
        """Nothing: `snip runs` sees by itself which runs this machine is at."""

    def stop(self, working: list[Worker]) -> None:
        """End all processes; those at work save first."""
        for worker in working:
            worker.process.terminate()
        for _, pipe in self._idle:
            pipe.close()
        for process in [worker.process for worker in working] + [p for p, _ in self._idle]:
            process.join(SAVING)
            if process.is_alive():
                process.kill()


def _died(worker: Worker) -> Outcome:
    worker.process.join()
    code = worker.process.exitcode or 0
    # A negative code is the signal of whoever killed it, which is how a machine gets memory back.
    why = (
        "perhaps for want of memory (try fewer --jobs)"
        if code < 0
        else "perhaps because Snip's files were changed meanwhile (give the command again)"
    )
    said = f"the process of {worker.task.name} ended by itself (exit code {code}), {why}"
    return Outcome(LOST, said)


def start(place: Place) -> tuple[BaseProcess, Connection]:
    """A new process that waits for configurations in a pipe, and answers with outcomes."""
    context = get_context("spawn")  # torch's threads do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, place), daemon=True)
    # A terminal sends Ctrl-C to all processes. Only the command hears it, and tells its workers:
    # of two signals the second would end a training without a checkpoint.
    with _ignored("SIGINT", "SIGHUP"):
        process.start()
    theirs.close()
    return process, ours


def _serve(pipe: Connection, place: Place) -> None:
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, end_now)
    warnings.simplefilter("ignore")  # what they say of a run is in its report
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            config = pipe.recv()
        except EOFError:
            return
        pipe.send(attempt(config, place))


def _end_with_parent() -> None:
    """If the command is killed, end too; a training saves its work first."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _ignored(*names: str) -> Iterator[None]:
    """Inside the block these signals are ignored, and so they are in processes started there."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            if hasattr(signal, name):  # SIGHUP is unknown on Windows
                number = getattr(signal, name)
                before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
