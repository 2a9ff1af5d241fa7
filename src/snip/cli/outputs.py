"""Check the names of output files before any work is done."""

from __future__ import annotations

from pathlib import Path

from snip.common.errors import InputError


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
    except OSError as error:  # such as a name that is too long, or a folder without access
        raise InputError(f"{flag} {path} cannot be used: {error.strerror}.") from error
