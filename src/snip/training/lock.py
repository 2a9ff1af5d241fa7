"""One process per run folder: a lock that the system releases, however the process ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from snip.common.errors import FileError
from snip.common.files import require_ordinary

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are the user's own care there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Hold `folder` for this process, or refuse because another one trains in it.

    If the work inside fails before it has written anything, no trace of the lock is left either.
    """
    if folder is not None:
        require_folder(folder)
        require_ordinary(folder / LOCK)  # opening a pipe would wait for ever
    if folder is None or fcntl is None:
        yield
        return
    try:
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        before = set() if missing else _names(folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise FileError(f"cannot write in {folder}: {error}; choose another place.") from error
    with file:
        _hold(file, folder)
        try:
            yield
        except BaseException:
            if LOCK not in before and _names(folder) == before | {LOCK}:
                _remove(folder / LOCK, missing)
            raise


def require_folder(folder: Path) -> None:
    """Refuse a path that cannot become a run's folder because it is a file."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file: give a folder for the run.")


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def _hold(file: BinaryIO, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file between our opening and locking it; whoever
        # comes next would make a new one and hold that.
        free = _is_at(file, folder / LOCK)
    except OSError as error:
        # Any other error means a file system without locks: carry on without one.
        free = error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    if not free:
        raise FileError(
            f"run folder {folder} is in use by another process: "
            "wait for it to end, or choose another folder."
        )


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove(lock: Path, made: list[Path]) -> None:
    """Delete the lock's file, and the folders that were made for it, the innermost first."""
    with suppress(OSError):  # a folder that somebody else uses by now stays
        lock.unlink()
        for folder in made:
            folder.rmdir()
