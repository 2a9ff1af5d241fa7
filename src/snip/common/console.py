"""Print results on stdout and remarks, errors and progress on stderr.

Text may quote a file, so control characters are spelled out and never reach the terminal.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from snip.common.errors import FileError
from snip.common.text import escaped

if TYPE_CHECKING:  # rich takes long to import, and short commands print no table
    from rich.console import Console, RenderableType
    from rich.table import Table

T = TypeVar("T")
Bar = TypeVar("Bar", bound="TextBar")

GAP = 3  # terminal columns between two columns of a table, at most
WIDE = 160  # columns where there is no terminal, so that tables in a log are not folded
PATIENCE = 2.0  # seconds before a bar appears: short work stays silent
BAR_EVERY = 0.5  # seconds; drawing takes about 4 ms, so at most 1% of the time

_tracking = ContextVar("an outer `track` is at work", default=False)


@contextmanager
def results() -> Iterator[TextIO]:
    """The standard output, for results; FileError if it is closed or full."""
    if sys.stdout is None:
        raise FileError("the result cannot be shown: the standard output is closed. Open it.")
    try:
        yield sys.stdout
    except SystemExit as ended:  # rich exits so when the reader, such as `head`, has seen enough
        if ended.code != 1:
            raise
    except OSError as error:
        # Buffered output would fail again when Python ends: it goes nowhere instead.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
            return
        raise FileError(
            f"the result cannot be shown: the standard output failed ({error.strerror}). "
            "Send it elsewhere."
        ) from error


def say(text: str) -> None:
    """Print text on stdout as it is, however long its lines."""
    with results() as stdout:
        stdout.write(escaped(text, keep="\n") + "\n")


def remark(text: str) -> None:
    """Print a line on stderr."""
    if sys.stderr is not None:  # a process may be started with a closed one
        sys.stderr.write(escaped(text, keep="\n") + "\n")


def complain(text: str) -> None:
    """Print a user's mistake as one paragraph on stderr."""
    if sys.stderr is None:
        return
    if sys.stderr.isatty():
        # Paths and commands are not broken across lines, so that they can be copied.
        text = textwrap.fill(
            f"error: {text}",
            min(100, shutil.get_terminal_size().columns),
            break_long_words=False,
            break_on_hyphens=False,
        ).removeprefix("error: ")
    console(sys.stderr).print("error: ", style="bold red", end="")
    remark(text)


def finish() -> None:
    """Flush stdout, so that a full disk is reported here and not when Python ends."""
    if sys.stdout is not None:
        with results() as stdout:
            stdout.flush()


def console(file: TextIO) -> Console:
    """A rich console that prints text as it is, without markup or colours."""
    from rich.console import Console

    width = None if file.isatty() or os.environ.get("COLUMNS") else WIDE
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def show(renderable: RenderableType) -> None:
    """Print a table or a different object of rich on stdout."""
    with results() as stdout:
        console(stdout).print(renderable)


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values on stdout, one pair per line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name:<{width}}  {escaped(str(value))}")


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, keys: int = 0) -> None:
    """Print a table on stdout, with columns of numbers aligned to the right.

    A table that is too wide is folded. With `keys` it is split into several tables below each
    other, each of which begins with the first `keys` columns.
    """
    cells = [
        [escaped(value) if isinstance(value, str) else f"{value:,}" for value in row]
        for row in rows
    ]
    whole = [list(range(len(columns)))]
    for places in _fitting(columns, cells, keys) if keys else whole:
        show(_table([columns[i] for i in places], [[row[i] for i in places] for row in cells]))


def _fitting(columns: Sequence[str], cells: Sequence[Sequence[str]], keys: int) -> list[list[int]]:
    """Split the columns into tables that are no wider than the console."""
    with results() as stdout:
        room = console(stdout).width
    widths = [max(map(len, cells_of)) + GAP for cells_of in zip(columns, *cells, strict=True)]
    first = list(range(keys))
    tables = [list(first)]
    for place in range(keys, len(columns)):
        if len(tables[-1]) > keys and sum(widths[i] for i in (*tables[-1], place)) > room:
            tables.append(list(first))
        tables[-1].append(place)
    return tables


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(row[index][:1].isdigit() or row[index] in ("", "-") for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def track(iterable: Iterable[T], *, description: str, total: int | None = None) -> Iterator[T]:
    """Yield from `iterable`, with a bar and the time left once it takes more than two seconds.

    A `track` inside a `track` stays silent: the outer one shows the progress of the whole.
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
    """A progress bar with text behind it; appears when first drawn, disappears at the end."""

    def __init__(self, description: str, total: int, *, width: int = 40) -> None:
        self._description, self._total, self._width = description, total, width
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self: Bar) -> Bar:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def draw(self, done: int, text: str) -> None:
        """Show `done` of the total, and the text."""
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
