"""What is at a path: asked so that a forbidden folder or an impossible name is a sentence."""

from __future__ import annotations

import os
import stat

from snip.common.errors import FileError
from snip.common.text import escaped

PathLike = str | os.PathLike[str]


def exists(path: PathLike) -> bool:
    """Whether there is anything at `path`; FileError if the system does not let us look."""
    return _mode(path) != 0


def is_file(path: PathLike) -> bool:
    """Whether an ordinary file is at `path`; FileError if the system does not let us look."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: PathLike) -> bool:
    """Whether a folder is at `path`; FileError if the system does not let us look."""
    return stat.S_ISDIR(_mode(path))


def names_in(folder: PathLike) -> list[str]:
    """The names of what is in a folder, sorted; FileError if the system does not let us look."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise forbidden(folder) from error


def require_ordinary(path: PathLike) -> None:
    """Refuse a folder, a pipe or a device: opening a pipe would wait for ever."""
    if is_folder(path):
        raise FileError(f"{path} is a folder: give a file in it.")
    if exists(path) and not is_file(path):  # what is not there is told by whoever opens it
        raise FileError(f"{path} is no ordinary file: give a file.")


def unreadable(path: PathLike, reason: object, fix: str) -> FileError:
    """The error for a file that may be whole, but is missing, forbidden or another one."""
    return FileError(f"cannot read {path} ({escaped(str(reason))}): {fix}.")


def forbidden(path: PathLike) -> FileError:
    """The error for what the user may not look at."""
    return unreadable(path, "permission denied", "give yourself read access to it and its folder")


def _mode(path: PathLike) -> int:
    """The kind and permissions of what is at `path`; 0 if there is nothing.

    Path.exists() and its relatives raise where a folder on the way is forbidden or a name is too
    long, and no caller wants their traceback.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a null character is in no name
        return 0
    except PermissionError as error:
        raise forbidden(path) from error
    except OSError as error:
        reason = error.strerror or "the system refuses"
        raise unreadable(path, reason.lower(), "choose another place") from error
