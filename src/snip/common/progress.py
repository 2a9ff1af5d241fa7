"""A progress bar for anything that takes more than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
Bar = TypeVar("Bar", bound="TextBar")
PATIENCE = 2.0  # seconds before a bar appears: short work stays silent
_tracking = ContextVar("whether something is being tracked", default=False)
BAR_EVERY = 0.5  # drawing takes about 4 ms: at most 1% of the time


def track(iterable: Iterable[T], *, description: str, total: int | None = None) -> Iterator[T]:
    """Yield from `iterable`, with a bar and the time left once it proves long.

    What is tracked inside another stays silent: the outer one says how far the whole is.
    """
    if sys.stderr is None or not sys.stderr.isatty() or _tracking.get():
        yield from iterable
        return
    _tracking.set(True)
    try:
        yield from _with_bar(iterable, description, total)
    finally:
        _tracking.set(False)


def _with_bar(iterable: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    from rich.console import Console
    from rich.progress import Progress

    due = time.monotonic() + PATIENCE
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(description, total=total, visible=False)
        for done, item in enumerate(iterable, 1):
            yield item
            if time.monotonic() >= due:
                bar.update(task, completed=done, visible=True)
                bar.refresh()
                due = time.monotonic() + BAR_EVERY


class TextBar:
    """A bar with words behind it, which appears when it is first drawn and goes at the end."""

    def __init__(self, description: str, total: int, *, width: int = 40) -> None:
        self._description, self._total, self._width = description, total, width
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self: Bar) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def draw(self, done: int, text: str) -> None:
        """Show how many are done, and the words."""
        if self._bar is None:
            self._bar = _bar_with_text(self._width)
            self._task = self._bar.add_task(self._description, total=self._total, text=text)
            self._bar.start()
        self._bar.update(self._task, completed=done, text=text)
        self._bar.refresh()


def _bar_with_text(width: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(width),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
