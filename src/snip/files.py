"""The one place that writes files: every write is whole or does not happen."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from snip.errors import FileError

PathLike = str | os.PathLike[str]


def write_with(path: PathLike, writer: Callable[[Path], None]) -> None:
    """Let `writer` fill a temporary file beside `path`, then put it in place in one move."""
    path = Path(path)
    if path.exists() and not path.is_file():
        # Putting a file in its place would remove a device, or fail on a folder.
        raise FileError(f"cannot write {path}: it is no ordinary file. Choose another place.")
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix
        )
        os.close(handle)
        temporary = Path(name)
        try:
            writer(temporary)
            _flush_to_disk(temporary)
            temporary.chmod(0o666 & ~_umask())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_bytes(path: PathLike, data: bytes) -> None:
    """Write `data` to `path`, whole or not at all."""
    write_with(path, lambda temporary: _write(temporary, data))


def write_text(path: PathLike, text: str) -> None:
    """Write `text` as UTF-8 to `path`, whole or not at all."""
    write_bytes(path, text.encode())


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


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn what the system or a serialiser says of a failed write into a sentence."""
    try:
        yield
    except FileError:
        raise
    except (OSError, RuntimeError) as error:
        # torch.save reports a full disk as RuntimeError, safetensors as its own kind.
        full = getattr(error, "errno", None) == errno.ENOSPC or "space" in str(error).lower()
        reason = "the disk is full; free some space" if full else f"{error}; choose another place"
        raise FileError(f"cannot write {path}: {reason}. Nothing was changed.") from error
