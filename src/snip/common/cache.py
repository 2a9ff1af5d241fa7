"""The one folder for what can be made again: decoded images, downloads, timings of layers."""

from __future__ import annotations

import os
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
