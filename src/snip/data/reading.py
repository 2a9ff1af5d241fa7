"""Turn what goes wrong inside a foreign file into one sentence that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snip.common import files

FETCH_AGAIN = "delete it and fetch it again"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Any failure to open, unpack or parse a data file becomes a FileError."""
    with files.reading(path, fix=FETCH_AGAIN):
        try:
            yield
        except FileNotFoundError as error:
            fix = "put it there, or name another folder"
            raise files.unreadable(path, "no such file", fix) from error
