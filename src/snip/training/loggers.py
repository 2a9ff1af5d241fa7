"""What follows a training from outside, such as TensorBoard: one small interface for all of them.

To add one: a class with the methods of `Logger` and a row of `LOGGERS` in `snip.runs.logs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

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
    """Around a training: begin all loggers, and end those that have begun."""
    started: list[Logger] = []
    try:
        for logger in loggers:
            started.append(logger)
            logger.begin(history)
        yield
    finally:
        for logger in started:
            logger.end()


def scalars(metrics: Metrics) -> dict[str, float]:
    """An evaluation under the names that loggers show: the part first, then what was measured."""
    named = {
        f"{what}/{part}": getattr(metrics, f"{part}_{what}")
        for what in ("loss", "error")
        for part in ("train", "valid", "test")
    }
    named |= {"lr": metrics.lr, "sparsity": metrics.sparsity}
    return {name: value for name, value in named.items() if value is not None}
