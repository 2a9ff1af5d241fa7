"""How commands and experiments speak: results on stdout, remarks and complaints on stderr.

What they say may quote a file, so that control characters are shown and never obeyed.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from snip.common.errors import FileError
from snip.common.text import escaped

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

GAP = 3  # columns of the console between two of a table, at most
WIDE = 160  # columns where there is no terminal, so that tables in a log are not folded


def console(file: TextIO) -> Console:
    """A console that prints text as it is, without markup or colours."""
    from rich.console import Console

    width = None if file.isatty() or os.environ.get("COLUMNS") else WIDE
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def say(text: str) -> None:
    """One line on stdout, whatever its length."""
    with results() as stdout:
        stdout.write(escaped(text, keep="\n") + "\n")


def remark(text: str) -> None:
    """A line beside the results, on stderr."""
    if sys.stderr is not None:  # a process may be started with a closed one
        sys.stderr.write(escaped(text, keep="\n") + "\n")


def complain(text: str) -> None:
    """A user's mistake as one paragraph on stderr."""
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


def show(renderable: RenderableType) -> None:
    """Print a table or another object of rich on stdout."""
    with results() as stdout:
        console(stdout).print(renderable)


def finish() -> None:
    """Write out what is still held back: a full disk is told here, and not at Python's end."""
    if sys.stdout is not None:
        with results() as stdout:
            stdout.flush()


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, keys: int = 0) -> None:
    """Print a table on stdout, with columns of numbers aligned to the right.

    One that is too wide is folded; with `keys` it is several tables below each other, all of which
    begin with so many columns.
    """
    cells = [
        [escaped(value) if isinstance(value, str) else f"{value:,}" for value in row]
        for row in rows
    ]
    whole = [list(range(len(columns)))]
    for places in _fitting(columns, cells, keys) if keys else whole:
        show(_table([columns[i] for i in places], [[row[i] for i in places] for row in cells]))


def _fitting(columns: Sequence[str], cells: Sequence[Sequence[str]], keys: int) -> list[list[int]]:
    """The columns of each of several tables that are no wider than the console."""
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
        numeric = all(_is_number(row[index]) for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def show_facts(facts: Mapping[str, object]) -> None:
    """Print names and values on stdout, one pair per line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name:<{width}}  {escaped(str(value))}")


@contextmanager
def results() -> Iterator[TextIO]:
    """Where results go, the standard output; FileError if it is closed, or takes no more."""
    if sys.stdout is None:
        raise FileError("the result cannot be shown: the standard output is closed. Open it.")
    try:
        yield sys.stdout
    except SystemExit as ended:  # what rich makes of a reader, such as `head`, that has seen enough
        if ended.code != 1:
            raise
    except OSError as error:
        # What is still held back would fail again when Python ends: it goes nowhere instead.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, has seen enough
            return
        raise FileError(
            f"the result cannot be shown: the standard output failed ({error.strerror}). "
            "Send it elsewhere."
        ) from error


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "-")
