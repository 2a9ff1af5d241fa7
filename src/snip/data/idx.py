"""The idx files of MNIST and of the sets that took over its file names, plain or gzip."""

from __future__ import annotations

import gzip
import struct
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from snip.common.files import damaged, is_file, unreadable
from snip.data.reading import FETCH_AGAIN, reading
from snip.data.spec import Content, Reader, Spec
from snip.data.split import Split

# gzip files come first because they have a checksum. Some re-uploads have the dotted names.
_ENDINGS = ("-idx{}-ubyte.gz", "-idx{}-ubyte", ".idx{}-ubyte.gz", ".idx{}-ubyte")


def idx_layout(folder: Path, spec: Spec) -> Reader | None:
    """The reader of a folder with train-images-idx3-ubyte(.gz) and its three companions."""
    if _file(folder, "train-images", 3) is None:
        return None
    return lambda: Content(_read_split(folder, "train", spec), _read_split(folder, "t10k", spec))


def read_idx(path: Path, spec: Spec, dimensions: int) -> np.ndarray:
    """The uint8 array of one idx file: images [N, H, W] or labels [N]."""
    with reading(path), path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            return _parse(file, path, spec, dimensions)
        with gzip.GzipFile(fileobj=file) as unpacked:
            return _parse(unpacked, path, spec, dimensions)  # type: ignore[arg-type]


def _parse(file: BinaryIO, path: Path, spec: Spec, dimensions: int) -> np.ndarray:
    header = file.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions:
        raise EOFError("the file ends within its header")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", header)
    if magic != 0x0800 + dimensions:
        raise ValueError(f"the magic number is {magic}, not {0x0800 + dimensions}")
    # Before memory is taken: a header of a few bytes can claim gigabytes.
    spec.require_count(shape[0], path)
    _check_images(shape[1:], path, spec)
    size = prod(shape)
    data = np.empty(size, dtype=np.uint8)
    filled = _fill(file, data)
    if filled < size:
        raise EOFError(f"the header promises {size} bytes, {filled} are there")
    if file.read(1):  # reading on also makes gzip verify its checksum
        raise ValueError(f"more than the {size} bytes that the header promises")
    return data.reshape(shape)


def _check_images(sizes: list[int], path: Path, spec: Spec) -> None:
    if sizes and tuple(sizes) != spec.shape[1:]:
        (height, width), (_, *expected) = sizes, spec.shape
        raise unreadable(
            path,
            f"its images are {height}x{width}, not {expected[0]}x{expected[1]}",
            "this is another data set; put the right file there",
        )


def _fill(file: BinaryIO, data: np.ndarray) -> int:
    view, filled = data.data, 0
    while filled < len(view):
        got = file.readinto(view[filled:])  # type: ignore[attr-defined]
        if not got:
            break
        filled += got
    return filled


def _read_split(folder: Path, part: str, spec: Spec) -> Split:
    paths = [_file(folder, f"{part}-{kind}", n) for kind, n in (("images", 3), ("labels", 1))]
    for path, kind, n in zip(paths, ("images", "labels"), (3, 1), strict=True):
        if path is None:
            raise unreadable(
                folder / f"{part}-{kind}-idx{n}-ubyte.gz", "no such file", "put it there"
            )
    images_path, labels_path = (path for path in paths if path is not None)
    images, labels = read_idx(images_path, spec, 3), read_idx(labels_path, spec, 1)
    if len(images) != len(labels):
        reason = f"{len(labels)} labels for {len(images)} images"
        raise damaged(labels_path, reason, "fetch both files again")
    if len(labels) and labels.max() >= spec.classes:
        raise damaged(
            labels_path, f"a label is {labels.max()}, not 0 to {spec.classes - 1}", FETCH_AGAIN
        )
    return Split(torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64)))


def _file(folder: Path, stem: str, dimensions: int) -> Path | None:
    candidates = (folder / (stem + ending.format(dimensions)) for ending in _ENDINGS)
    return next((path for path in candidates if is_file(path)), None)
