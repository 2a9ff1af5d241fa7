"""Tiny-ImageNet as a folder and as an archive; damaged ones are refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from data_layouts import (
    empty_folder,
    refused,
    tiny_imagenet_files,
    write_files,
    write_zip,
)

from snip.data import load


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_folder(monkeypatch, tmp_path)


@pytest.mark.parametrize("form", ["zip", "folder", "inside", "by class"])
def test_tiny_imagenet_forms(folder: Path, form: str) -> None:
    files = tiny_imagenet_files(by_class=form == "by class")
    if form == "zip":
        prefixed = {f"tiny-imagenet-200/{name}": data for name, data in files.items()}
        write_zip(folder / "tiny-imagenet-200.zip", prefixed)
    else:
        write_files(folder if form == "inside" else folder / "tiny-imagenet-200", files)
    data = load("tiny-imagenet", data_dir=folder)
    assert data.train.images.shape == (200, 3, 64, 64)
    # Files come in the order of their names, labels from the order of wnids.txt.
    wnids = files["wnids.txt"].decode().split()
    assert data.train.labels.tolist() == [wnids.index(name) for name in sorted(wnids)]
    assert sorted(data.test.labels.tolist()) == [0, 50, 100]
    assert data.note == "1 of 500 images per class"
    grey = data.train.images[data.train.labels == 0][0]
    assert torch.equal(grey[0], grey[2])
    again = load("tiny-imagenet", data_dir=folder)
    assert torch.equal(again.train.images, data.train.images)


def damage(files: dict[str, bytes], what: str) -> None:
    first = next(name for name in files if name.startswith("train/") and "JPEG" in name)
    if what == "image":
        files[first] = files[first][:100]
    elif what == "wnids":
        files["wnids.txt"] = b"n00000001\nn00000002"
    elif what == "no text":
        files["wnids.txt"] = b"n0000\xff\xfe001\n"
    elif what == "annotations of no text":
        files["val/val_annotations.txt"] = b"\xff\xfe\t\n"
    elif what == "annotations":
        files["val/val_annotations.txt"] = b"val_0.JPEG\tn99999999\t0\t0\t1\t1\n"
    elif what == "no annotations":
        del files["val/val_annotations.txt"]
    elif what == "no images":
        for name in [name for name in files if name.startswith("val/images")]:
            del files[name]


@pytest.mark.parametrize("form", ["zip", "folder"])
@pytest.mark.parametrize(
    ("what", "word"),
    [
        ("image", "_0.JPEG"),
        ("wnids", "names 2 classes, not 200"),
        ("no text", "wnids.txt"),
        ("annotations of no text", "val_annotations.txt"),
        ("annotations", "belongs to no class"),
        ("no annotations", "val_annotations.txt"),
        ("no images", "200 training and 0 validation images"),
    ],
)
def test_damaged_tiny_imagenet(folder: Path, form: str, what: str, word: str) -> None:
    files = tiny_imagenet_files()
    damage(files, what)
    if form == "zip":
        write_zip(folder / "tiny-imagenet-200.zip", files)
    else:
        write_files(folder / "tiny-imagenet-200", files)
    refused("tiny-imagenet", folder, "tiny-imagenet-200", word)


@pytest.mark.parametrize("keep", [0, 1000, 100_000])
def test_truncated_zip(folder: Path, keep: int) -> None:
    path = folder / "tiny-imagenet-200.zip"
    write_zip(path, tiny_imagenet_files())
    path.write_bytes(path.read_bytes()[:keep])
    refused("tiny-imagenet", folder, str(path), "fetch it again")


def test_zip_with_a_changed_byte_fails_its_checksum(folder: Path) -> None:
    path = folder / "tiny-imagenet-200.zip"
    write_zip(path, tiny_imagenet_files())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    refused("tiny-imagenet", folder, str(path))
