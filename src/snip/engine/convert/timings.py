"""What was timed once on this machine is remembered: seconds by description, in one JSON file."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path

from snip.common.cache import cache_folder
from snip.common.errors import FileError
from snip.common.files import write_text
from snip.common.version import __version__

Work = Callable[[], object]


class Timings:
    """Seconds by description; `save` writes them, and nothing breaks where that is impossible."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path
        self.seconds = _read(self.path)
        self._new = False

    def get(self, key: str, make: Callable[[], Work], measure: Callable[[Work], float]) -> float:
        """The remembered time, or that of the work which `make` prepares."""
        if key not in self.seconds:
            self.seconds[key] = measure(make())
            self._new = True
        return self.seconds[key]

    def save(self) -> None:
        """Write what is new."""
        if not self._new:
            return
        try:
            # Another process may have saved its own since: keep both.
            merged = _read(self.path) | self.seconds
            write_text(self.path, json.dumps(merged, indent=0, sort_keys=True))
        except FileError:
            pass  # a read-only home only means to time again next time


def default_path() -> Path:
    """In the user's cache folder, by version and machine."""
    return cache_folder() / f"timings-{__version__}-{platform.node() or 'machine'}.json"


def _read(path: Path) -> dict[str, float]:
    try:
        content = json.loads(path.read_text())
        return {str(key): float(value) for key, value in content.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # none yet, or damaged: it is only a memory
