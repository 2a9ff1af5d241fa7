"""The sums of a finished run's files: they show what was altered, is missing or came later.

A sum shows damage and edits by mistake. It is no signature: who alters a file on purpose can
write a new sum beside it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

from snip.common import files
from snip.common.checks import fits
from snip.common.errors import FileError
from snip.runs.folder import ALL, CONFIG, FIRST_COST, RESULT, SUMS


class Changes(NamedTuple):
    """What became of a folder's files since its run ended."""

    altered: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = (f"{kind}: {', '.join(names)}" for kind, names in self._asdict().items() if names)
        return "; ".join(told) or "as the run left them"


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """End a run: write the sums of all its files, and then the result, which is one of them."""
    text = files.json_text(result)
    written = [name for name in (CONFIG, FIRST_COST, *ALL) if name not in (RESULT, SUMS)]
    sums = {name: files.sha256(folder / name) for name in written if files.exists(folder / name)}
    sums[RESULT] = hashlib.sha256(text.encode()).hexdigest()
    files.write_json(folder / SUMS, {"sha256": dict(sorted(sums.items()))})
    # The result comes last: with it the folder counts as finished, and its sums are complete.
    files.write_text(folder / RESULT, text)


def changes(folder: Path) -> Changes | None:
    """What is no longer as the run left it; None if the folder has no sums."""
    sums = _read(folder)
    if sums is None:
        return None
    here = _files(folder)
    return Changes(
        altered=tuple(n for n in here if n in sums and files.sha256(folder / n) != sums[n]),
        missing=tuple(n for n in sums if n not in here),
        extra=tuple(n for n in here if n not in sums),
    )


def require_as_summed(path: Path) -> None:
    """Refuse a file of a finished run that was altered since the run ended."""
    folder = path.parent
    expected = (_read(folder) or {}).get(path.name) if files.exists(folder / RESULT) else None
    if expected is not None and files.is_file(path) and files.sha256(path) != expected:
        raise FileError(
            f"{path} was altered after its run ended: its sum is not the one in {SUMS}. "
            f"Put back a copy, or delete {folder} and run again."
        )


def _read(folder: Path) -> dict[str, str] | None:
    path = folder / SUMS
    if not files.exists(path):
        return None
    sums: dict[str, str] = files.read_json(path).get("sha256", {})
    if not sums or not fits(sums, dict[str, str]):
        raise files.damaged(path, "it holds no sums")
    return sums


def _files(folder: Path) -> list[str]:
    """The ordinary files in a run's folder, without hidden ones and the sums themselves."""
    names = (name for name in files.names_in(folder) if name[0] != "." and name != SUMS)
    return [name for name in names if files.is_file(folder / name)]
