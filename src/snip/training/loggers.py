"""What follows a training from outside, such as TensorBoard: one small interface for all of them.

To add one: a class with the methods of `Logger` and a row of `LOGGERS` in `snip.runs.logs`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from snip.common.errors import FileError
from snip.common.text import first_line
from snip.training.metrics import Metrics


class Logger(Protocol):
    """Is told every evaluation of a training, once each, however often the training resumes."""

    def begin(self, history: Sequence[Metrics]) -> None:
        """The training starts after these evaluations.

        Whatever was logged before and is not among them did not happen: a resumed training goes
        back to its last checkpoint, and does the rest again.
        """

    def record(self, metrics: Metrics) -> None:
        """Log one more evaluation."""

    def end(self) -> None:
        """The training has ended or was stopped: write out what is held back."""

    def phase(self, name: str) -> Logger:
        """Another logger beside this one, for a training of that name that comes before."""


@contextmanager
def begun(loggers: Sequence[Logger], history: Sequence[Metrics]) -> Iterator[None]:
    """Around a training: begin all loggers, and end those that have begun, whatever happens."""
    with ExitStack() as ends:
        for logger in loggers:
            ends.push(_ending(logger))  # before it begins: it may fail with a file already open
            logger.begin(history)
        yield


def _ending(logger: Logger) -> Callable[..., None]:
    """What ends a logger when a training is left; of several errors the first is the one told."""

    def end(error: type[BaseException] | None, *_: object) -> None:
        try:
            logger.end()
        except Exception:
            # An error on its way, of the training or of another logger, says more than this one,
            # which is often its consequence, as on a full disk.
            if error is None:
                raise

    return end


def scalars(metrics: Metrics) -> dict[str, float]:
    """An evaluation under the names that loggers show: the part first, then what was measured."""
    named = {
        f"{what}/{part}": getattr(metrics, f"{part}_{what}")
        for what in ("loss", "error")
        for part in ("train", "valid", "test")
    }
    named |= {"lr": metrics.lr, "sparsity": metrics.sparsity}
    return {name: value for name, value in named.items() if value is not None}


@contextmanager
def writing(where: str, kinds: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what goes wrong while something is logged, also the library's own kinds of error, into
    a sentence."""
    caught: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except FileError:
        raise
    except caught as error:
        raise FileError(
            f"cannot log to {where}: {getattr(error, 'strerror', None) or first_line(error)}. Free "
            "some space or choose another place; without --log the run goes on from its checkpoint."
        ) from error


def began(history: Sequence[Metrics]) -> float:
    """When a training would have begun that starts now, had it never been interrupted."""
    return time.time() - (history[-1].seconds if history else 0.0)


def identity(folder: Path, inside: str) -> str:
    """By which a library finds a training again: the same however often it resumes.

    Plain letters, whatever the folder is called.
    """
    return hashlib.sha256(f"{folder.resolve()} {inside}".encode()).hexdigest()[:12]
