"""A process that does one run after another for the command that started it."""

from __future__ import annotations

import os
import signal
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from snip.common.errors import FileError, InputError, first_line
from snip.common.files import NO_ROOM
from snip.runs import RunConfig, run
from snip.training.interrupts import end_now
from snip.training.lock import BusyError

DONE, BUSY, FAILED, FULL = "done", "busy", "failed", "full"


@dataclass(frozen=True)
class Place:
    """Where runs and data are."""

    out: Path  # the folder of run folders
    data_dir: Path | None = None
    download: bool = False


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended, and a sentence if it came to nothing."""

    kind: str
    sentence: str = ""


def attempt(config: RunConfig, place: Place) -> Outcome:
    """Do one run, resume it, or find that it is finished or in other hands."""
    try:
        run(config, place.out, data_dir=place.data_dir, download=place.download, progress=False)
    except BusyError as error:
        return Outcome(BUSY, str(error))
    except FileError as error:
        return Outcome(FULL if _is_full(error) else FAILED, str(error))
    except InputError as error:
        return Outcome(FAILED, str(error))
    except Exception as error:  # a fault of ours: the other runs go on, and this one is told whole
        traceback.print_exc()
        return Outcome(FAILED, f"{type(error).__name__}: {first_line(error)}")
    return Outcome(DONE)


def _is_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that of a full disk."""
    while error is not None:
        if getattr(error, "errno", None) in NO_ROOM or "the disk is full" in str(error):
            return True
        error = error.__cause__
    return False


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
