"""A progress bar for anything that takes more than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 2.0  # seconds before a bar appears: short work stays silent


def track(iterable: Iterable[T], *, description: str, total: int | None = None) -> Iterator[T]:
    """Yield from `iterable`, with a bar and the time left once it proves long."""
    if not sys.stderr.isatty():
        yield from iterable
        return
    from rich.console import Console
    from rich.progress import Progress

    started = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task(description, total=total, visible=False)
        for item in iterable:
            yield item
            bar.update(task, advance=1, visible=time.monotonic() - started > PATIENCE)
            bar.refresh()
