"""The one place that writes files, whole or not at all, and that says what is wrong with one."""

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

from snip.common.errors import FileError, MissingPackageError
from snip.common.places import PathLike, exists, forbidden, require_ordinary, unreadable
from snip.common.text import escaped, first_line

NO_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # a full disk, a used-up quota
TEMPORARY = ".snip-tmp-"  # how the name of a file begins that is still being written
# Bytes of a JSON text: none of ours comes near, and Python takes up to 24 times as many for it.
LARGEST_JSON = 1 << 23
NOTHING_CHANGED = " Nothing was changed."  # how the sentence of a failed write ends
ANOTHER = "put back a copy, delete its folder, or choose another one"


def write_with(path: PathLike, writer: Callable[[Path], object]) -> None:
    """Let `writer` fill a temporary file beside `path`, then put it in place in one move."""
    path = Path(path)
    with _write_errors(path):
        # A symbolic link is kept, and the file that it points to is written.
        target = path.resolve()
        if target.exists() and not target.is_file():
            # Putting a file in its place would remove a device, or fail on a folder.
            raise FileError(f"cannot write {path}: it is no ordinary file. Choose another place.")
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _new_file(target.parent, path.suffix)
        mode = temporary.stat().st_mode
        try:
            try:
                writer(temporary)
            except (RuntimeError, SafetensorError):
                _ask_system(temporary)
                raise
            # safetensors puts a file of its own in place, which only its owner may read.
            temporary.chmod(mode)
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


@contextmanager
def reading(path: PathLike, *, what: str = "file", fix: str = ANOTHER) -> Iterator[None]:
    """Whatever goes wrong while `path` is opened, unpacked or understood becomes a FileError."""
    require_ordinary(path)
    try:
        yield
    except (FileError, MissingPackageError):
        raise
    except FileNotFoundError as error:
        if exists(path):  # safetensors says this of a file that it may not open
            raise forbidden(path) from error
        raise FileError(f"there is no {what} {path}.") from error
    except PermissionError as error:
        raise forbidden(path) from error
    except MemoryError as error:
        raise unreadable(path, "out of memory", "free some memory") from error
    except Exception as error:
        # Parsers have a dozen ways to fail on a hostile file; all of them mean the same here. What
        # they said is no cause to print beside this: it may quote the file, unescaped.
        raise damaged(path, error, fix) from None


def read_bytes(path: PathLike, *, most: int) -> bytes:
    """The content of a file; one of more than `most` bytes is refused before it is read."""
    require_ordinary(path)
    with Path(path).open("rb") as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


def read_json(path: PathLike, *, fix: str = ANOTHER) -> dict[str, Any]:
    """A JSON object from a file; a damaged one is refused."""
    with reading(path, fix=fix):
        data = parsed_json(read_bytes(path, most=LARGEST_JSON).decode())
        if not isinstance(data, dict):
            raise ValueError("it holds no JSON object")
        return data


def parsed_json(text: str) -> Any:
    """The value of a JSON text; a text that is too long is refused before it takes memory."""
    if len(text) > LARGEST_JSON:
        raise ValueError(f"it has {len(text):,} characters of JSON, more than {LARGEST_JSON:,}")
    return json.loads(text)


def write_json(path: PathLike, data: dict[str, Any]) -> None:
    """A JSON object into a file, whole or not at all."""
    write_text(path, json_text(data))


def json_text(data: dict[str, Any]) -> str:
    """A JSON object as `write_json` writes it."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_tensors(path: PathLike, tensors: dict[str, Any], header: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all; the same content gives the same bytes."""
    from safetensors.torch import save_file

    def write(temporary: Path) -> None:
        save_file(tensors, temporary, metadata=header or None)
        _sort_header(temporary)

    write_with(path, write)


def damaged(path: PathLike, reason: object, fix: str = ANOTHER) -> FileError:
    """The error for a file that does not hold what it should."""
    if isinstance(reason, Exception):
        # A KeyError says only the name; of an error without a message its kind is all there is.
        said = first_line(reason) if str(reason) else type(reason).__name__
        reason = f"no {said}" if isinstance(reason, KeyError) else said
    return FileError(f"{path} is damaged or of another version ({escaped(str(reason))}): {fix}.")


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote in `folder`."""
    for path in folder.glob(f"{TEMPORARY}*"):
        remove(path)


def remove(path: Path) -> None:
    """Delete a file if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot delete {path}: {error}. Delete it by hand.") from error


def append_line(path: PathLike, line: str) -> None:
    """Append one line; a line is never left half-written by this process."""
    path = Path(path)
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():  # opening it would wait for a reader
            raise FileError(f"cannot write {path}: it is no ordinary file. Choose another place.")
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")


def sha256(path: PathLike) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with reading(path), Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _new_file(folder: Path, suffix: str) -> Path:
    """An empty file under an unused name, with the permissions that the user's umask gives."""
    # The suffix is kept because numpy appends ".npy" to a name without one.
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}{suffix}"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return path


def _sort_header(path: Path) -> None:
    """Put the header of a safetensors file into a fixed order: safetensors has it by chance."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        if "__metadata__" not in header:
            return
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > size:
            raise ValueError(f"the sorted header has {len(text)} bytes in place of {size}")
        file.seek(8)
        file.write(text.ljust(size))


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
        raise FileError(f"cannot write {path}: {_reason(error)}.{NOTHING_CHANGED}") from error


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
