"""One run of many: what there is to do, where, and how an attempt at it ended."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from snip.common.errors import FileError, InputError
from snip.common.files import NO_ROOM
from snip.common.lock import BusyError
from snip.common.text import unforeseen
from snip.runs import RunConfig, run
from snip.runs.logs import require_loggers
from snip.training.divergence import DivergenceError

DONE, BUSY, FAILED, FULL = "done", "busy", "failed", "full"
DIVERGED = "diverged"  # it would do so again
LOST = "lost"  # with its worker, through no fault of the run: it is begun again
SAVING = 120.0  # seconds that a worker has to save its work when it is told to end


@dataclass(frozen=True)
class Place:
    """Where runs and data are, and by which loggers runs are followed there."""

    out: Path  # the folder of run folders
    data_dir: Path | None = None
    download: bool = False
    log: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_loggers(self.log)


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a run ended, and a sentence if it came to nothing."""

    kind: str
    sentence: str = ""


@dataclass
class Task:
    """A run to do. `first` is the folder of the run that must be finished before."""

    label: str
    config: RunConfig
    first: str | None = None
    not_before: float = 0.0
    tries: int = 0  # how often its worker was lost
    is_elsewhere: bool = False  # another command was at it when it was last tried

    @property
    def name(self) -> str:
        """The run's folder."""
        return self.config.folder_name


def attempt(config: RunConfig, place: Place) -> Outcome:
    """Do one run, resume it, or find that it is finished or in other hands."""
    try:
        run(
            config,
            place.out,
            data_dir=place.data_dir,
            download=place.download,
            progress=False,
            log=place.log,
        )
    except BusyError as error:
        return Outcome(BUSY, str(error))
    except FileError as error:
        return Outcome(FULL if _is_full(error) else FAILED, str(error))
    except DivergenceError as error:
        return Outcome(DIVERGED, str(error))
    except InputError as error:
        return Outcome(FAILED, str(error))
    except Exception as error:  # a fault of ours: the other runs go on, and this one is told whole
        traceback.print_exc()
        return Outcome(FAILED, unforeseen(error))
    return Outcome(DONE)


def _is_full(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that of a full disk."""
    while error is not None:
        if getattr(error, "errno", None) in NO_ROOM or "the disk is full" in str(error):
            return True
        error = error.__cause__
    return False
