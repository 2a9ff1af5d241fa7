"""The one folder for what can be made again: decoded images, downloads, timings of layers."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """SNIP_CACHE, or the user's cache folder."""
    chosen = os.environ.get("SNIP_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    return user_cache() / "snip"


def user_cache() -> Path:
    """The user's cache folder: XDG_CACHE_HOME, which by its specification is an absolute path."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return Path(named) if os.path.isabs(named) else Path("~/.cache").expanduser()


def trim(folder: Path, pattern: str, largest: int, *, keep: Path) -> None:
    """Delete the files that were not used for the longest time until `largest` bytes are left."""
    found = []
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process may trim at the same time
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total > largest and path != keep:
            with suppress(OSError):
                path.unlink()
                total -= size
