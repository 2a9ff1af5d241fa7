"""One process per folder: a lock that the system releases, however the process ends."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from snip.common.errors import FileError
from snip.common.files import exists, is_file, is_folder, require_ordinary

try:
    import fcntl
except ImportError:  # Windows has no such locks: the user must keep two processes apart there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"
TAKEN = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
TRIES, PAUSE = 5, 0.05  # `is_held` takes the lock for a moment: try again after PAUSE seconds


class BusyError(FileError):
    """The folder is in use by a different process."""


@dataclass(frozen=True)
class Lock:
    """The lock that a process holds on a run's folder."""

    folder: Path | None  # None: nothing is kept
    file: BinaryIO | None = None  # None where the system has no locks

    def require(self) -> None:
        """Raise if the folder is no longer the one that was locked.

        Every write would create a deleted folder again with only some of its files, or go to the
        folder of a process that started after the deletion.
        """
        if self.folder is None:
            return
        kept = self.folder.is_dir() if self.file is None else _is_at(self.file, self.folder / LOCK)
        if not kept:
            raise FileError(
                f"run folder {self.folder} (or {LOCK} in it) was deleted, moved or replaced while "
                "the run was at work: the run stopped and wrote nothing more. Put the folder back "
                "and run again to go on from its last checkpoint; without it the run starts over."
            )


@contextmanager
def locked(folder: Path | None) -> Iterator[Lock]:
    """Lock `folder` for this process, or raise BusyError while a different one holds it.

    If the work inside fails before it has written anything, the lock is removed too, with the
    folders that were made for it: a command that is refused leaves nothing behind.
    """
    if folder is not None:
        require_folder(folder)
        require_ordinary(folder / LOCK)  # opening a pipe would wait for ever
    if folder is None or fcntl is None:
        yield Lock(folder)
        return
    try:
        missing = [place for place in (folder, *folder.parents) if not exists(place)]
        before = set() if missing else _names(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    with _opened(folder) as file:
        _hold(file, folder)
        try:
            yield Lock(folder, file)
        except BaseException:
            if LOCK not in before and _is_at(file, folder / LOCK):
                _remove_unused(folder, before, missing)
            raise


def _opened(folder: Path) -> BinaryIO:
    """Open the file to lock; a process that gives up a folder it made may remove it."""
    try:
        return (folder / LOCK).open("ab")
    except FileNotFoundError as error:
        raise BusyError(f"{folder} was removed by another process: try again.") from error
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> FileError:
    return FileError(f"cannot write in {folder}: {error}; choose another place.")


@contextmanager
def waiting_lock(folder: Path, seconds: float = 300.0) -> Iterator[Lock]:
    """Lock `folder` as `locked` does, for short work: wait for other processes to release it.

    Short work can take long: on a busy machine it has taken half a minute to draw a figure.
    """
    until = time.monotonic() + seconds
    while True:
        with ExitStack() as stack:
            try:
                lock = stack.enter_context(locked(folder))
            except BusyError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
                continue
            yield lock
            return


def require_folder(folder: Path) -> None:
    """Refuse a path that cannot become a folder because it, or a parent of it, is a file."""
    there = next((place for place in (folder, *folder.parents) if exists(place)), folder)
    if exists(there) and not is_folder(there):
        raise FileError(f"{there} is a file: give a folder.")


def is_held(folder: Path) -> bool:
    """Return True if a process holds the lock of `folder`."""
    path = folder / LOCK
    if fcntl is None or not is_file(path):
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in TAKEN
    return False


def _names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def _hold(file: BinaryIO, folder: Path) -> None:
    # Another process may have removed the file between our opening and locking it: the next one
    # would make a new file and lock that.
    if not _taken(file) or not _is_at(file, folder / LOCK):
        raise BusyError(
            f"{folder} is in use by another process: wait for it to end, or choose another folder."
        )


def _taken(file: BinaryIO) -> bool:
    """Lock the file; False if a different process keeps it locked."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in TAKEN:
                time.sleep(PAUSE)
                continue
            # Any other error means a file system without locks: carry on without one.
        return True
    return False


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Return True if the open file is the one at `path`; inodes of open files are not reused."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _remove_unused(folder: Path, before: set[str], made: list[Path]) -> None:
    """Delete the lock's file if the work left nothing beside it, and the folders made for it."""
    with suppress(OSError):  # a folder that somebody else uses by now stays
        if _names(folder) == before | {LOCK}:
            (folder / LOCK).unlink()
            for place in made:  # the innermost first
                place.rmdir()
