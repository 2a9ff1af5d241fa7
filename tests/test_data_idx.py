"""IDX files: every form gives the same pixels; damaged ones are refused by name."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from data_layouts import (
    empty_folder,
    idx_bytes,
    idx_set,
    noise,
    refused,
    write_idx,
)

from snip.common.errors import FileError
from snip.data import DATASETS, load


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_folder(monkeypatch, tmp_path)


@pytest.mark.parametrize(("packed", "dotted"), [(True, False), (False, False), (False, True)])
def test_idx_forms(folder: Path, packed: bool, dotted: bool) -> None:
    write_idx(folder, packed=packed, dotted=dotted)
    data, arrays = load("fashion-mnist", data_dir=folder), idx_set()
    assert np.array_equal(data.train.images[:, 0], arrays["train-images-idx3-ubyte"])
    assert np.array_equal(data.test.labels, arrays["t10k-labels-idx1-ubyte"])
    assert data.note == "12 of 60000 training images"


def test_truncated_gzip(folder: Path) -> None:
    write_idx(folder)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-200])
    refused("fashion-mnist", folder, str(path), "damaged", "fetch it again")


def test_gzip_with_a_changed_byte_fails_its_checksum(folder: Path) -> None:
    write_idx(folder)
    path = folder / "t10k-labels-idx1-ubyte.gz"
    packed = bytearray(gzip.compress(idx_bytes(np.arange(6, dtype=np.uint8)), compresslevel=0))
    packed[-10] ^= 1  # a stored label; the eight bytes behind are checksum and length
    path.write_bytes(packed)
    refused("fashion-mnist", folder, str(path), "CRC")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("train-images-idx3-ubyte", b"", "ends within its header"),
        ("train-images-idx3-ubyte", b"\x00\x00", "ends within its header"),
        ("train-images-idx3-ubyte", b"<html>this is an error page", "magic number"),
        (
            "train-images-idx3-ubyte",
            struct.pack(">4I", 0xD03, 12, 28, 28),
            "magic number",
        ),  # floats
        ("train-images-idx3-ubyte", idx_bytes(noise(12, 28, 28))[:-1], "9407 are there"),
        ("train-images-idx3-ubyte", idx_bytes(noise(12, 28, 28)) + b"x", "more than the 9408"),
        ("train-images-idx3-ubyte", struct.pack(">4I", 0x803, 2**31, 28, 28), "claims"),
        ("train-images-idx3-ubyte", idx_bytes(noise(12, 32, 32)), "32x32, not 28x28"),
        ("train-labels-idx1-ubyte", idx_bytes(np.zeros(11)), "11 labels for 12 images"),
        ("train-labels-idx1-ubyte", idx_bytes(noise(12, 28, 28)), "magic number"),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.full(6, 10)), "a label is 10, not 0 to 9"),
    ],
)
def test_damaged_idx(folder: Path, name: str, content: bytes, word: str) -> None:
    write_idx(folder, packed=False)
    (folder / name).write_bytes(content)
    refused("fashion-mnist", folder, name, word)


def test_idx_companion_missing(folder: Path) -> None:
    write_idx(folder)
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    refused("fashion-mnist", folder, "t10k-labels-idx1-ubyte.gz", "no such file")


@pytest.mark.parametrize("below", ["KMNIST/raw", "kmnist", ""])
def test_kmnist(folder: Path, below: str) -> None:
    write_idx(folder / below)
    data = load("kmnist", data_dir=folder)
    assert np.array_equal(data.train.images[:, 0], idx_set()["train-images-idx3-ubyte"])
    assert (data.classes, data.augment) == (10, None)


def test_kmnist_is_not_promised_for_download(folder: Path) -> None:
    for download in (False, True):
        with pytest.raises(FileError, match="FOLDER/KMNIST/raw") as caught:
            load("kmnist", data_dir=folder, download=download)
        assert "--download" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "other", "labels"),
    [
        ("fashion-mnist", "MNIST", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5]),
        ("kmnist", "MNIST", [5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5]),
        ("kmnist", "FashionMNIST", [9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9]),
        ("mnist", "FashionMNIST", [9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9]),
    ],
)
def test_no_set_is_taken_for_one_whose_files_have_the_same_names(
    folder: Path, name: str, other: str, labels: list[int]
) -> None:
    write_idx(folder, packed=False)
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.array(labels)))
    own = DATASETS[name].folders[0]
    refused(name, folder, f"these are {other}'s files", str(folder), f"a folder called {own}")
