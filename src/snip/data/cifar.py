"""CIFAR-10 as its home publishes it: python or binary version, archive or unpacked."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from snip.common.files import damaged, is_file, read_bytes
from snip.data.reading import reading
from snip.data.safe_pickle import PickledArray, load_arrays
from snip.data.spec import Content, Reader, Spec
from snip.data.split import Split

_PARTS = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
_PIXELS = 3 * 32 * 32
_LARGEST = 64 << 20  # a genuine part has 31 MB; more is no CIFAR and could fill the memory
Arrays = tuple[np.ndarray, np.ndarray]  # images [N, 3, 32, 32], labels [N]


def binary_layout(folder: Path, spec: Spec) -> Reader | None:
    """The binary version: an archive, its unpacked folder, or the folder's content."""
    return _layout(folder, "cifar-10-binary.tar.gz", "cifar-10-batches-bin", ".bin", _parse_binary)


def python_layout(folder: Path, spec: Spec) -> Reader | None:
    """The python version (pickles, read with restrictions), in the same three forms."""
    return _layout(folder, "cifar-10-python.tar.gz", "cifar-10-batches-py", "", _parse_pickle)


def _layout(
    folder: Path, archive: str, unpacked: str, ending: str, parse: Callable[[bytes], Arrays]
) -> Reader | None:
    names = tuple(part + ending for part in _PARTS)
    for place in (folder / unpacked, folder):
        if any(is_file(place / name) for name in names):
            return lambda: _content(_read_folder(place, names), place, names, parse)
    path = folder / archive
    if is_file(path):
        return lambda: _content(_read_archive(path, names), path, names, parse)
    return None


def _read_folder(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for name in names:
        with reading(folder / name):
            found[name] = read_bytes(folder / name, most=_LARGEST)
    return found


def _read_archive(path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The named members, in memory: nothing is unpacked to disk, no path is followed."""
    found: dict[str, bytes] = {}
    with (
        reading(path),
        _Unpacked(path) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r:") as archive,
    ):
        for member in archive:
            name = PurePosixPath(member.name).name
            if name not in names or not member.isreg():
                continue
            if member.size > _LARGEST:
                raise ValueError(f"{member.name} has {member.size} bytes")
            file = archive.extractfile(member)
            if file is not None:
                found[name] = file.read()
        while unpacked.read(1 << 20):  # to the end, where gzip has its checksum
            pass
    return found


class _Unpacked(gzip.GzipFile):
    """A packed file of which no piece may be larger than a genuine part.

    tarfile reads long names and comments whole, however long the archive says that they are.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LARGEST:
            raise ValueError(f"it asks for {size} bytes at once")
        return super().read(size)


def _content(
    parts: Mapping[str, bytes],
    where: Path,
    names: tuple[str, ...],
    parse: Callable[[bytes], Arrays],
) -> Content:
    missing = [name for name in names if name not in parts]
    if missing:
        raise damaged(where, f"{', '.join(missing)} missing", "fetch and unpack it again")
    arrays = []
    for name in names:
        with reading(where / name):
            arrays.append(parse(parts[name]))
    return Content(_join(arrays[:5]), _join(arrays[5:]))


def _join(parts: list[Arrays]) -> Split:
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Split(torch.from_numpy(images), torch.from_numpy(labels))


def _parse_binary(data: bytes) -> Arrays:
    if not data or len(data) % (1 + _PIXELS):
        raise ValueError(f"{len(data)} bytes are no whole number of {1 + _PIXELS}-byte records")
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, 1 + _PIXELS)
    return records[:, 1:].reshape(-1, 3, 32, 32), _checked_labels(records[:, 0])


def _parse_pickle(data: bytes) -> Arrays:
    content = load_arrays(data)
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, not a dictionary")
    content = {key.decode() if isinstance(key, bytes) else key: v for key, v in content.items()}
    array, labels = content.get("data"), content.get("labels")
    if not isinstance(array, PickledArray):
        raise ValueError("its 'data' is no array")
    images = array.numpy()
    if images.ndim != 2 or images.shape[1] != _PIXELS:
        raise ValueError(f"its 'data' has the shape {images.shape}, not (N, {_PIXELS})")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("its 'labels' are no list of whole numbers")
    if len(labels) != len(images):
        raise ValueError(f"{len(labels)} labels for {len(images)} images")
    return images.reshape(-1, 3, 32, 32), _checked_labels(np.array(labels, dtype=np.int64))


def _checked_labels(labels: np.ndarray) -> np.ndarray:
    if len(labels) and not 0 <= labels.min() <= labels.max() <= 9:
        raise ValueError(f"labels run from {labels.min()} to {labels.max()}, not 0 to 9")
    return labels.astype(np.int64)
