"""What an experiment needs before anything slow begins: a folder for its results, and its data."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from snip.common.errors import FileError
from snip.common.files import TEMPORARY, remove, write_bytes
from snip.common.lock import waiting_lock
from snip.data import DATASETS, load
from snip.data.locate import find
from snip.experiments.sweep.work import Place

TRIED = f"{TEMPORARY}tried"  # a file that is written to see whether one can be


class _TriedError(Exception):
    """Ends a trial: a lock leaves no trace of work that fails without having written anything."""


def require_writable(folder: Path) -> None:
    """Refuse a folder of results or runs that cannot be written, and leave nothing behind."""
    with suppress(_TriedError), waiting_lock(folder):
        write_bytes(folder / TRIED, b"")
        remove(folder / TRIED)
        raise _TriedError


def absent_data(
    names: Collection[str], asked: Collection[str], place: Place, *, fetch: bool
) -> dict[str, str]:
    """The data sets that are not here, each with a sentence on where to put it.

    Of those that are `asked` for a command may fetch what is not here: then they count as here, and
    with `fetch` they are fetched now.
    """
    absent = {}
    for name in sorted(names):
        download = place.download and name in asked
        if (download and not fetch) or find(DATASETS[name], place.data_dir) is not None:
            continue
        try:
            load(name, data_dir=place.data_dir, download=download)
        except FileError as error:
            absent[name] = str(error)
    return absent
