"""What the machine is, and what it has that a large computation needs."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path

# What a container or a job of a cluster may take (cgroups of version 2 and 1).
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int | None:
    """The memory of the machine, or as much of it as this process may take; None: unknown."""
    known = [limit for path in LIMITS if (limit := _limit(Path(path))) is not None]
    with suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(known, default=None)


def _limit(path: Path) -> int | None:
    """The number in a file; None if there is no such file, or it says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def cpu_name() -> str:
    """The processor's name as the system knows it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
