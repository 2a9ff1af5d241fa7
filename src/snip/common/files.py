"""Write files whole or not at all, read them or say what is wrong, and find the cache folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from snip.common.errors import FileError, MissingPackageError
from snip.common.text import escaped, first_line

PathLike = str | os.PathLike[str]

NO_ROOM = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # a full disk, a used-up quota
TEMPORARY = ".snip-tmp-"  # prefix of the name of a file that is still being written
# Bytes of a JSON text: none of ours comes near, and Python takes up to 24 times as many for it.
LARGEST_JSON = 1 << 23
NOTHING_CHANGED = " Nothing was changed."  # ends the sentence of a failed write
ANOTHER = "put back a copy, delete its folder, or choose another one"


def exists(path: PathLike) -> bool:
    """Return True if there is anything at `path`; FileError if the system does not let us look."""
    return _mode(path) != 0


def is_file(path: PathLike) -> bool:
    """Return True for an ordinary file; FileError if the system does not let us look."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: PathLike) -> bool:
    """Return True for a folder; FileError if the system does not let us look."""
    return stat.S_ISDIR(_mode(path))


def names_in(folder: PathLike) -> list[str]:
    """Sorted names of the entries of a folder; FileError if the system does not let us look."""
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise forbidden(folder) from error


def require_ordinary(path: PathLike) -> None:
    """Refuse a folder, a pipe or a device: opening a pipe would wait for ever."""
    if is_folder(path):
        raise FileError(f"{path} is a folder: give a file in it.")
    if exists(path) and not is_file(path):  # opening a missing file raises its own error
        raise FileError(f"{path} is no ordinary file: give a file.")


def unreadable(path: PathLike, reason: object, fix: str) -> FileError:
    """The error for a file that may be intact, but is missing, forbidden or of another kind."""
    return FileError(f"cannot read {path} ({escaped(str(reason))}): {fix}.")


def forbidden(path: PathLike) -> FileError:
    """The error for a path that the user has no permission to read."""
    return unreadable(path, "permission denied", "give yourself read access to it and its folder")


def damaged(path: PathLike, reason: object, fix: str = ANOTHER) -> FileError:
    """The error for a file with the wrong content."""
    if isinstance(reason, Exception):
        # A KeyError only has the name; an error without a message only has its type.
        said = first_line(reason) if str(reason) else type(reason).__name__
        reason = f"no {said}" if isinstance(reason, KeyError) else said
    return FileError(f"{path} is damaged or of another version ({escaped(str(reason))}): {fix}.")


def _mode(path: PathLike) -> int:
    """Type and permissions of the file at `path`; 0 if there is none.

    Path.exists() and its relatives raise where a parent folder is forbidden or a name is too long,
    and no caller wants their traceback.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        return 0
    except PermissionError as error:
        raise forbidden(path) from error
    except OSError as error:
        reason = error.strerror or "the system refuses"
        raise unreadable(path, reason.lower(), "choose another place") from error


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
        # The suffix is kept because numpy appends ".npy" to a name without one.
        temporary = target.parent / f"{TEMPORARY}{secrets.token_hex(8)}{path.suffix}"
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # less the umask
        try:
            try:
                writer(temporary)
            except (RuntimeError, SafetensorError):  # which hide the system's error
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


def write_json(path: PathLike, data: dict[str, Any]) -> None:
    """Write a JSON object, whole or not at all."""
    write_text(path, json_text(data))


def json_text(data: dict[str, Any]) -> str:
    """A JSON object as `write_json` writes it."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_tensors(path: PathLike, tensors: dict[str, Any], header: dict[str, str]) -> None:
    """Write a safetensors file, whole or not at all; the same content gives the same bytes."""
    from safetensors.torch import save_file

    def write(temporary: Path) -> None:
        mode = temporary.stat().st_mode
        save_file(tensors, temporary, metadata=header or None)
        # safetensors puts a file of its own in place, which only its owner may read.
        temporary.chmod(mode)
        _sort_header(temporary)

    write_with(path, write)


def append_line(path: PathLike, line: str) -> None:
    """Append one line; this process never leaves half of one."""
    path = Path(path)
    with _write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_fifo():  # opening it would wait for a reader
            raise FileError(f"cannot write {path}: it is no ordinary file. Choose another place.")
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")


def remove(path: Path) -> None:
    """Delete a file if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"cannot delete {path}: {error}. Delete it by hand.") from error


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of a process that was killed while it wrote in `folder`."""
    for path in folder.glob(f"{TEMPORARY}*"):
        remove(path)


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


def _ask_system(temporary: Path) -> None:
    """Write on to a file that a serialiser could not write: the system's error has the reason."""
    with temporary.open("ab") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())


def _flush_to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turn the error of a failed write into a sentence without the name of a temporary file."""
    try:
        yield
    except FileError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        number = getattr(error, "errno", None)
        reason = getattr(error, "strerror", None) or first_line(error)
        reason += "; choose another place"
        # safetensors only says it in words.
        if number in NO_ROOM or "no space" in str(error).lower():
            reason = "the disk is full; free some space"
        elif number == errno.EFBIG:
            reason = "the file is larger than the system allows here (see ulimit -f)"
            reason += "; raise the limit"
        raise FileError(f"cannot write {path}: {reason}.{NOTHING_CHANGED}") from error


@contextmanager
def reading(path: PathLike, *, what: str = "file", fix: str = ANOTHER) -> Iterator[None]:
    """Turn any error while `path` is opened, unpacked or parsed into a FileError."""
    require_ordinary(path)
    try:
        yield
    except (FileError, MissingPackageError):
        raise
    except FileNotFoundError as error:
        if exists(path):  # safetensors raises this for a file that it may not open
            raise forbidden(path) from error
        raise FileError(f"there is no {what} {path}.") from error
    except PermissionError as error:
        raise forbidden(path) from error
    except MemoryError as error:
        raise unreadable(path, "out of memory", "free some memory") from error
    except Exception as error:
        # Parsers fail on a hostile file in a dozen ways, which all mean the same here. Their error
        # is not chained: a traceback would quote the file unescaped.
        raise damaged(path, error, fix) from None


def read_bytes(path: PathLike, *, most: int) -> bytes:
    """Read a file; one of more than `most` bytes is refused before it is read."""
    require_ordinary(path)
    with Path(path).open("rb") as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


def read_json(path: PathLike, *, fix: str = ANOTHER) -> dict[str, Any]:
    """Read a JSON object; a damaged file is refused."""
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


def sha256(path: PathLike) -> str:
    """Hex digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with reading(path), Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def cache_folder() -> Path:
    """SNIP_CACHE, or `snip` in the user's cache folder: images, downloads, timings of layers."""
    if chosen := os.environ.get("SNIP_CACHE"):
        return Path(os.path.expanduser(chosen))
    # XDG_CACHE_HOME is an absolute path by its specification; a relative one is ignored.
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path("~/.cache").expanduser()) / "snip"


def trim(folder: Path, pattern: str, largest: int, *, keep: Path) -> None:
    """Delete the least recently used files until at most `largest` bytes are left."""
    files = []
    for path in folder.glob(pattern):
        with suppress(OSError):  # a different process may trim at the same time
            status = path.stat()
            files.append((status.st_mtime_ns, status.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total > largest and path != keep:
            with suppress(OSError):
                path.unlink()
                total -= size
