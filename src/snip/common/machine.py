"""The machine, torch's settings on it, and the version of the code that runs there."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from snip.common.errors import InputError
from snip.common.text import first_line

try:
    __version__ = version("snip-prune")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0+source"

PACKAGE = Path(__file__).parents[1]
SOURCES = (".py", ".cpp", ".hpp")
SHOWN = ("cli", "page")  # packages that only show results: a change there leaves results valid


def set_up_torch(*, threads: int | None, device: str) -> None:
    """Set torch's number of threads, and refuse a device that is not available."""
    import torch

    if threads is not None:
        if threads < 1:
            raise InputError(f"threads is {threads}: give 1 or more.")
        torch.set_num_threads(threads)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # torch's messages are long and differ by device: only the first line is shown.
        raise InputError(
            f"device {device!r} cannot be used here ({first_line(error).rstrip('.')}): "
            "give 'cpu', or 'cuda' where there is a GPU."
        ) from error


def cpu_name() -> str:
    """Name of the processor as the system gives it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def code_digest() -> str:
    """Digest of all sources that results depend on."""
    digest = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in SOURCES):
        name = path.relative_to(PACKAGE)
        if name.parts[0] not in SHOWN:
            digest.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@cache
def commit() -> str:
    """Short hash of the commit of the sources, with a + if they were changed since.

    Empty for an installed package: its version identifies the code.
    """
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may lie within the repository of somebody's project.
    if not top or Path(top) / "src" / PACKAGE.name != PACKAGE:
        return ""
    changed = _git("status", "--porcelain", "--", str(PACKAGE))
    return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def note_code() -> None:
    """Cache the code's digest and commit before any work, during which the sources may change."""
    code_digest()
    commit()


def _git(*arguments: str) -> str:
    """Output of git; empty where there is no git or no repository."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
