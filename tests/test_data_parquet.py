"""Parquet files, and the cache of the images decoded from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_layouts import (
    empty_folder,
    encoded,
    noise,
    refused,
    write_cifar_parquet,
    write_parquet,
)

from snip.common.errors import InputError
from snip.data import load


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_folder(monkeypatch, tmp_path)


@pytest.mark.parametrize("column", ["img", "image"])
def test_parquet(folder: Path, column: str) -> None:
    images = write_cifar_parquet(folder, column=column)
    data = load("cifar-10", data_dir=folder)
    assert np.array_equal(data.train.images, images.transpose(0, 3, 1, 2))
    assert data.test.labels.tolist() == [0, 1, 2, 3, 4]
    assert data.note == "1 of 5000 images per class"


def test_jpeg_is_noted(folder: Path) -> None:
    write_cifar_parquet(folder, kind="JPEG")
    assert load("cifar-10", data_dir=folder).note.startswith("JPEG-recompressed, 1 of 5000")


def test_grey_parquet(folder: Path) -> None:
    pictures = noise(3, 28, 28)
    blobs = [encoded(picture) for picture in pictures]
    for part in ("train", "test"):
        write_parquet(folder / part / "0000.parquet", blobs, [0, 1, 2], "image")
    data = load("fashion-mnist", data_dir=folder)
    assert np.array_equal(data.train.images[:, 0], pictures)


def test_parquet_in_several_parts(folder: Path) -> None:
    blobs = [encoded(picture) for picture in noise(6, 32, 32, 3)]
    write_parquet(folder / "train-00000-of-00002.parquet", blobs[:4], [0, 1, 2, 3])
    write_parquet(folder / "test-00000-of-00001.parquet", blobs, [0] * 6)
    refused("cifar-10", folder, "1 of the 2 parts")
    write_parquet(folder / "train-00001-of-00002.parquet", blobs[4:], [4, 5])
    assert load("cifar-10", data_dir=folder).train.labels.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("labels", "word"),
    [([0, 1, None], "1 labels are missing"), ([0, 1, 10], "0 to 10"), ([-1, 1, 2], "-1 to 2")],
)
def test_parquet_labels(folder: Path, labels: list[int | None], word: str) -> None:
    write_cifar_parquet(folder)
    blobs = [encoded(picture) for picture in noise(3, 32, 32, 3)]
    write_parquet(folder / "train-00000-of-00001.parquet", blobs, labels)
    refused("cifar-10", folder, "train-00000-of-00001.parquet", word)


@pytest.mark.parametrize(
    ("blob", "word"),
    [
        (None, "row 2 has no image bytes"),
        (b"", "image in row 2"),
        (b"\xff\xd8\xffgarbage", "image in row 2"),
        (encoded(noise(32, 32, 3))[:-40], "image in row 2"),
        (encoded(noise(64, 64, 3)), "64x64 pixels, not 32x32"),
        (b"GIF89a\x20\x00\x20\x00", "image in row 2"),
    ],
)
def test_parquet_bad_image(folder: Path, blob: bytes | None, word: str) -> None:
    write_cifar_parquet(folder)
    good = encoded(noise(32, 32, 3))
    write_parquet(folder / "train-00000-of-00001.parquet", [good, good, blob], [0, 1, 2])
    refused("cifar-10", folder, "train-00000-of-00001.parquet", word)


def test_parquet_of_something_else(folder: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write_cifar_parquet(folder)
    train = folder / "train-00000-of-00001.parquet"
    parquet.write_table(arrow.table({"img": ["a"], "label": [0]}), train)
    refused("cifar-10", folder, str(train), "columns img, label")
    write_parquet(train, [encoded(noise(32, 32, 3))], [0])
    table = parquet.read_table(train).rename_columns(["img", "fine_label"])
    parquet.write_table(table, train)
    refused("cifar-10", folder, str(train), "none is 'label'")
    (folder / "test-00000-of-00001.parquet").unlink()
    refused("cifar-10", folder, "test-*.parquet", "no such file")


@pytest.mark.parametrize("keep", [0, 3, 100, 5000])
def test_truncated_parquet(folder: Path, keep: int) -> None:
    write_cifar_parquet(folder)
    path = folder / "test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    refused("cifar-10", folder, str(path), "damaged")


def test_parquet_with_changed_bytes_never_passes_silently(folder: Path) -> None:
    write_cifar_parquet(folder)
    path = folder / "train-00000-of-00001.parquet"
    data = bytearray(path.read_bytes())
    data[200:400] = bytes(200)
    path.write_bytes(data)
    refused("cifar-10", folder, str(path))


@pytest.mark.parametrize("package", ["pyarrow.parquet", "PIL"])
def test_missing_extra(folder: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    write_cifar_parquet(folder)
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(InputError, match=r"pip install 'snip-prune\[data\]'"):
        load("cifar-10", data_dir=folder)


def cache_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.npy"))


def test_decoded_images_are_kept_and_checked(folder: Path, tmp_path: Path) -> None:
    write_cifar_parquet(folder)
    first = load("cifar-10", data_dir=folder)
    kept = cache_files(tmp_path)
    assert len(kept) == 2
    content = [path.read_bytes() for path in kept]
    kept[0].write_bytes(content[0][:-1] + bytes([content[0][-1] ^ 1]))
    kept[1].write_bytes(content[1][:50])
    second = load("cifar-10", data_dir=folder)
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.test.images, second.test.images)
    assert [path.read_bytes() for path in cache_files(tmp_path)] == content


def test_cache_is_used(folder: Path, tmp_path: Path) -> None:
    """A cached array under the right name and digest comes back in place of the decoding."""
    from snip.data.cache import cached

    array = noise(2, 1, 3, 3)
    assert cached("key", array.shape, lambda: array) is array
    again = cached("key", array.shape, lambda: pytest.fail("decoded again"))
    assert np.array_equal(again, array)
    assert cached("key", (1, 1, 3, 3), lambda: array[:1]).shape == (1, 1, 3, 3)


def test_changed_file_is_decoded_anew(folder: Path) -> None:
    write_cifar_parquet(folder)
    load("cifar-10", data_dir=folder)
    blobs = [encoded(picture) for picture in noise(10, 32, 32, 3, seed=5)]
    write_parquet(folder / "train-00000-of-00001.parquet", blobs, list(range(10)))
    found = load("cifar-10", data_dir=folder).train.images
    assert np.array_equal(found, noise(10, 32, 32, 3, seed=5).transpose(0, 3, 1, 2))


def test_unwritable_cache_is_no_problem(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path / "file"))
    images = write_cifar_parquet(folder)
    data = load("cifar-10", data_dir=folder)
    assert np.array_equal(data.train.images, images.transpose(0, 3, 1, 2))
