"""The one folder for what can be made again: decoded images, downloads, timings of layers."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """SNIP_CACHE, or the user's cache folder."""
    chosen = os.environ.get("SNIP_CACHE")
    if chosen:
        return Path(os.path.expanduser(chosen))
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "snip"
