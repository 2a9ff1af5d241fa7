"""Several processes: who is the main one, and how the others get what it found."""

from __future__ import annotations

from typing import Any

from torch import distributed


def processes() -> int:
    """How many processes train together."""
    at_work = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if at_work else 1


def is_main() -> bool:
    """Whether this is the only process, or the first."""
    return processes() == 1 or distributed.get_rank() == 0


def from_main(found: Any) -> Any:
    """What the main process passed to this call, in every process."""
    if processes() == 1:
        return found
    held = [found]
    distributed.broadcast_object_list(held, src=0)
    return held[0]
