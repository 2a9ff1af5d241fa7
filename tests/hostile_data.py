"""Files of data sets, attacked: pickles of CIFAR and idx files."""

from __future__ import annotations

import gzip
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np

from snip.data import DATASETS
from snip.data.cifar import python_layout


class Pickled:
    """A pickle of it asks to call something, as numpy's arrays do."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def make_cifar(folder: Path) -> Path:
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        write_cifar(place / name, "file", CIFAR)
    return place / "test_batch"


PIXELS = random.Random(0).randbytes(3 * 3072)
CIFAR = {
    "shape": [3, 3072],
    "dtype": "u1",
    "fortran": False,
    "content": PIXELS,
    "labels": [1, 2, 3],
}


def cifar_trees(path: Path) -> dict[str, Any]:
    return {"file": dict(CIFAR)}


def write_cifar(path: Path, part: str, tree: Any) -> None:
    """A pickle as numpy writes it, whatever its fields are."""
    content = tree
    if isinstance(tree, dict):
        shape, dtype, fortran, data, labels = (tree.get(name) for name in CIFAR)
        shape = tuple(shape) if isinstance(shape, list) else shape
        kind = Pickled(np.dtype, (dtype, False, True), (3, "|", None, None, None, -1, -1, 0))
        state = (1, shape, kind, fortran, data)
        array = Pickled(np.zeros(0).__reduce__()[0], (np.ndarray, (0,), b"b"), state)
        content = {"data": array, "labels": labels}
    path.write_bytes(pickle.dumps(content, protocol=4))


def read_cifar(path: Path) -> Any:
    reader = python_layout(path.parent.parent, DATASETS["cifar-10"])
    assert reader is not None
    found = reader().test
    return found.images, found.labels


def make_idx(folder: Path) -> Path:
    pixels = random.Random(0).randbytes(3 * 28 * 28)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 3, 28, 28) + pixels, mtime=0))
    return path


def idx_trees(path: Path) -> dict[str, Any]:
    return {"header": list(struct.unpack(">4I", gzip.decompress(path.read_bytes())[:16]))}


def write_idx(path: Path, part: str, tree: Any) -> None:
    fields = [value for value in tree if isinstance(value, int)] if isinstance(tree, list) else []
    header = b"".join(struct.pack(">I", abs(value) % 2**32) for value in fields)
    path.write_bytes(gzip.compress(header + gzip.decompress(path.read_bytes())[16:], mtime=0))
