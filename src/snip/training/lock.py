"""One process per run folder: a lock that the system releases, however the process ends."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snip.common.errors import FileError

try:
    import fcntl
except ImportError:  # Windows: two processes on one folder are the user's own care there
    fcntl = None  # type: ignore[assignment]


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Hold `folder` for this process, or refuse because another one trains in it."""
    if folder is None or fcntl is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("ab")
    except OSError as error:
        raise FileError(f"cannot write in {folder}: {error}; choose another place.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise FileError(
                    f"run folder {folder} is in use by another process: "
                    "wait for it to end, or choose another folder."
                ) from error
            # A file system without locks: carry on without one.
        yield
