"""Remembers what was timed on this machine: seconds by description, in one JSON file."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from snip.common.checks import fits
from snip.common.errors import FileError
from snip.common.files import cache_folder, read_json, write_text
from snip.common.machine import __version__

T = TypeVar("T")


class Timings:
    """Seconds by description. Where no file can be written, layers are timed again."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path
        self.seconds = _read(self.path)
        self._new = False

    def get(self, key: str, make: Callable[[], T], measure: Callable[[T], float]) -> float:
        """The remembered seconds, or else those that `measure` finds of what `make` returns."""
        if key not in self.seconds:
            self.seconds[key] = measure(make())
            self._new = True
        return self.seconds[key]

    def save(self) -> None:
        """Write the file if there are new timings."""
        if not self._new:
            return
        try:
            # Another process may have saved timings since this one read the file: keep both.
            merged = _read(self.path) | self.seconds
            write_text(self.path, json.dumps(merged, indent=0, sort_keys=True))
        except FileError:
            pass  # a read-only folder: time again next time


def default_path() -> Path:
    """A file in the user's cache folder, one per version and machine."""
    return cache_folder() / f"timings-{__version__}-{platform.node() or 'machine'}.json"


def _read(path: Path) -> dict[str, float]:
    try:
        content = read_json(path)
    except FileError:
        return {}  # no file yet, or a damaged one: time again
    return content if fits(content, dict[str, float]) else {}
