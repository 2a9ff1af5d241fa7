"""What the commands share: how they speak, and how they set torch up."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from snip.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDE = 160  # columns where there is no terminal: tables in a log are not folded


def console(file: TextIO | None = None) -> Console:
    """A console on stdout that prints what it is given: no markup, no colours of its own."""
    from rich.console import Console

    file = file or sys.stdout
    width = None if file.isatty() or os.environ.get("COLUMNS") else WIDE
    return Console(file=file, width=width, markup=False, highlight=False, emoji=False)


def say(text: str) -> None:
    """One line on stdout, whatever its length."""
    sys.stdout.write(f"{text}\n")


def remark(text: str) -> None:
    """A line beside the results, on stderr."""
    sys.stderr.write(f"{text}\n")


def complain(text: str) -> None:
    """A user's mistake as one paragraph on stderr."""
    if sys.stderr.isatty():
        # Paths and commands stay whole, to be copied.
        text = textwrap.fill(
            f"error: {text}",
            min(100, shutil.get_terminal_size().columns),
            break_long_words=False,
            break_on_hyphens=False,
        ).removeprefix("error: ")
    console(sys.stderr).print("error: ", style="bold red", end="")
    remark(text)


def show(renderable: RenderableType) -> None:
    """Something of rich's on stdout."""
    console().print(renderable)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; numbers to the right."""
    from rich import box
    from rich.table import Table

    cells = [[value if isinstance(value, str) else f"{value:,}" for value in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in cells)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*row)
    show(table)


def show_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one pair a line; easy to read and to cut."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        say(f"{name:<{width}}  {value}")


def size(count: float) -> str:
    """Bytes for people."""
    return f"{count / 1e6:.2f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def set_up_torch(*, threads: int | None, device: str) -> None:
    """Set the number of threads, and refuse a device that is not here."""
    import torch

    if threads is not None:
        if threads < 1:
            raise InputError(f"threads is {threads}: give 1 or more.")
        torch.set_num_threads(threads)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # torch explains at length, and differently for every kind of device.
        raise InputError(
            f"device {device!r} cannot be used here ({str(error).splitlines()[0].rstrip('.')}): "
            "give 'cpu', or 'cuda' where there is a GPU."
        ) from error


def require_file_name(path: Path | None, flag: str) -> None:
    """Refuse, before any work, an output file that can only fail at the end."""
    if path is None:
        return
    try:
        if path.is_dir():
            raise InputError(f"{flag} {path} is a folder: give the name of a file.")
        if path.exists() and not path.is_file():
            # Files are put in place by renaming, which would put one in a device's place.
            raise InputError(f"{flag} {path} is no ordinary file: give the name of one.")
        if path.parent.exists() and not path.parent.is_dir():
            raise InputError(f"{flag} {path} is inside a file, not a folder: give another place.")
    except OSError as error:  # a name too long, a folder that may not be entered
        raise InputError(f"{flag} {path} cannot be used: {error.strerror}.") from error


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "-")
