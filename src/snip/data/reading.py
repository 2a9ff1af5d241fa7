"""Turn what goes wrong inside a foreign file into one sentence that names it."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from snip.common.errors import FileError, InputError
from snip.common.files import damaged

FETCH_AGAIN = "delete it and fetch it again"


def unreadable(path: Path | str, reason: object, fix: str) -> FileError:
    """The error for a file that may be whole, but is missing, forbidden or another one."""
    return FileError(f"cannot read {path} ({reason}): {fix}.")


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Any failure to open, unpack or parse `path` becomes a FileError."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise unreadable(path, "no such file", "put it there, or name another folder") from error
    except PermissionError as error:
        raise unreadable(path, "permission denied", "give yourself read access to it") from error
    except MemoryError as error:
        raise unreadable(path, "out of memory", "free some memory") from error
    except (
        OSError,
        EOFError,
        ValueError,
        RuntimeError,  # zipfile: an encrypted member
        zlib.error,
        tarfile.TarError,
        zipfile.BadZipFile,
    ) as error:
        raise damaged(path, str(error) or type(error).__name__, FETCH_AGAIN) from error
