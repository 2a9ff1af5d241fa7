"""Which code made a result: a fingerprint of this package's sources, and their commit."""

from __future__ import annotations

import hashlib
import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
KINDS = (".py", ".cpp", ".hpp")
SHOWN = ("cli", "page")  # rooms that only show results: a change there makes no new ones


@cache
def code_digest() -> str:
    """A fingerprint of all sources that results depend on."""
    found = hashlib.sha256()
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in KINDS):
        name = path.relative_to(PACKAGE)
        if name.parts[0] not in SHOWN:
            found.update(name.as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


@cache
def commit() -> str:
    """The commit that the sources are of, with a + if they were changed since.

    Empty for an installed package, which the version says all of.
    """
    top = _git("rev-parse", "--show-toplevel")
    # An installed package may lie within the repository of somebody's project.
    if not top or Path(top) / "src" / PACKAGE.name != PACKAGE:
        return ""
    changed = _git("status", "--porcelain", "--", str(PACKAGE))
    return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def note_code() -> None:
    """Note which code this is before any work: the sources may have changed when it is done."""
    code_digest()
    commit()


def _git(*arguments: str) -> str:
    """What git answers; nothing where there is no git or no repository."""
    command = ["git", "-C", str(PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
