"""Keep decoded images between runs, in files named by the fingerprint of their source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from math import prod
from pathlib import Path

import numpy as np

from snip.common import files
from snip.common.errors import FileError
from snip.common.files import cache_folder, trim

LARGEST = 8 << 30  # bytes of all decoded images; the largest set has 1.4 GB
HEADER = 1 << 12  # bytes of a cache file beside its array


def fingerprint(*words: object) -> str:
    """A short digest of everything that a cached array depends on."""
    return hashlib.sha256(repr(words).encode()).hexdigest()[:24]


def cached(key: str, shape: tuple[int, ...], make: Callable[[], np.ndarray]) -> np.ndarray:
    """The uint8 array stored under `key`, or what `make` returns, stored for the next time."""
    folder = cache_folder() / "decoded"
    for path in _candidates(folder, key):
        array = _read(path, shape)
        if array is not None:
            return array
    array = make()
    # The file's name contains the digest of its content, so that a damaged file is recognised.
    path = folder / f"{key}-{_digest(array)}.npy"
    with suppress(FileError):  # a cache that cannot be written is no reason to stop
        files.write_with(path, lambda temporary: np.save(temporary, array, allow_pickle=False))
        trim(folder, "*.npy", LARGEST, keep=path)
    return array


def _candidates(folder: Path, key: str) -> list[Path]:
    try:
        return sorted(folder.glob(f"{key}-*.npy"))
    except OSError:
        return []


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """The array of a cache file, or None if the file is not exactly what was written."""
    try:
        files.require_ordinary(path)
        # The size of an array is known before one is made of the header's claims.
        if path.stat().st_size > prod(shape) + HEADER:
            return None
        array = np.load(path, allow_pickle=False)
        os.utime(path)  # the file that was not used for the longest time goes first
    except (OSError, ValueError, EOFError, MemoryError):
        return None
    whole = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.shape == shape
    return array if whole and path.stem.endswith(f"-{_digest(array)}") else None


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:24]
