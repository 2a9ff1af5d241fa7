"""The one place that writes files: every write is whole or does not happen."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from snip.common.errors import FileError, first_line

PathLike = str | os.PathLike[str]
NO_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # a full disk, a used-up quota
TEMPORARY = ".snip-tmp-"  # how the name of a file begins that is still being written


def write_with(path: PathLike, writer: Callable[[Path], object]) -> None:
    """Let `writer` fill a temporary file beside `path`, then put it in place in one move."""
    path = Path(path)
    with _write_errors(path):
        target = (
            path.resolve()
        )  # a symbolic link is kept, and the file that it points to is written
        if target.exists() and not target.is_file():
            # Putting a file in its place would remove a device, or fail on a folder.
            raise FileError(f"cannot write {path}: it is no ordinary file. Choose another place.")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _new_file(target.parent, path.suffix)
        try:
            try:
                writer(temporary)
            except (RuntimeError, SafetensorError):
                _ask_system(temporary)
                raise
            _flush_to_disk(temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    write_with(path, lambda temporary: temporary.write_bytes(data))


def write_text(path: PathLike, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    write_bytes(path, text.encode())


def read_json(path: PathLike) -> dict[str, Any]:
    """A JSON object from a file; a damaged one is refused."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if not isinstance(data, dict):
        raise damaged(path, "it holds no JSON object")
    return data


def write_json(path: PathLike, data: dict[str, Any]) -> None:
    """A JSON object into a file, whole or not at all."""
    write_text(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def damaged(
    path: PathLike,
    reason: object,
    fix: str = "put back a copy, delete its folder, or choose another one",
) -> FileError:
    """The error for a file that does not hold what it should."""
    return FileError(f"{path} is damaged or of another version ({reason}): {fix}.")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote in `folder`."""
    for path in folder.glob(f"{TEMPORARY}*"):
        path.unlink(missing_ok=True)


def append_line(path: PathLike, line: str) -> None:
    """Append one line; a line is never left half-written by this process."""
    path = Path(path)
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")


def sha256(path: PathLike) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _new_file(folder: Path, suffix: str) -> Path:
    """An empty file under an unused name, with the permissions that the user's umask gives."""
    # The suffix is kept because numpy appends ".npy" to a name without one.
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}{suffix}"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return path


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn what the system or a serialiser says of a failed write into a sentence."""
    try:
        yield
    except FileError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        raise FileError(f"cannot write {path}: {_reason(error)}. Nothing was changed.") from error


def _reason(error: Exception) -> str:
    """Why a write failed and what to do, without the name of a temporary file."""
    number = getattr(error, "errno", None)
    if number in NO_ROOM or "no space" in str(error).lower():  # safetensors only says it in words
        return "the disk is full; free some space"
    if number == errno.EFBIG:
        return "the file is larger than the system allows here (see ulimit -f); raise the limit"
    return f"{getattr(error, 'strerror', None) or first_line(error)}; choose another place"


def _ask_system(temporary: Path) -> None:
    """Write on to a file that a serialiser could not write: the system's error has the reason."""
    with temporary.open("ab") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
