"""Writes tiny data sets in every layout that users have."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from snip.common.errors import FileError
from snip.data import load

IDX = {
    "train-images-idx3-ubyte": ("train", 3),
    "train-labels-idx1-ubyte": ("train", 1),
    "t10k-images-idx3-ubyte": ("t10k", 3),
    "t10k-labels-idx1-ubyte": ("t10k", 1),
}
PARTS = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")


def isolate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the data, caches and home of whoever runs the tests."""
    for name in ("SNIP_DATA", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, folder in (("HOME", "home"), ("SNIP_CACHE", "cache")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder for a data set, with no other in sight."""
    isolate(monkeypatch, tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def refused(name: str, folder: Path, *words: str) -> None:
    """Loading fails with one FileError whose sentence holds all the words."""
    with pytest.raises(FileError) as caught:
        load(name, data_dir=folder)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    head = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def idx_set() -> dict[str, np.ndarray]:
    """Twelve training and six test images with labels, by file name."""
    count = {"train": 12, "t10k": 6}
    return {
        name: noise(count[part], 28, 28, seed=count[part])
        if dimensions == 3
        else np.arange(count[part], dtype=np.uint8) % 10
        for name, (part, dimensions) in IDX.items()
    }


def write_idx(folder: Path, *, packed: bool = True, dotted: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in idx_set().items():
        stem = name.replace("-idx", ".idx") if dotted else name
        data = idx_bytes(array)
        if packed:
            (folder / f"{stem}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / stem).write_bytes(data)


def cifar_set() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Four images and labels per part."""
    return {
        part: (noise(4, 3072, seed=n), (np.arange(4) + 4 * n) % 10) for n, part in enumerate(PARTS)
    }


def cifar_files(version: str) -> dict[str, bytes]:
    """The six files of the 'py' or the 'bin' version, by name."""
    if version == "bin":
        return {
            f"{part}.bin": b"".join(
                bytes([label]) + image.tobytes()
                for image, label in zip(images, labels, strict=True)
            )
            for part, (images, labels) in cifar_set().items()
        }
    return {
        part: python2_pickle(images, [int(label) for label in labels])
        for part, (images, labels) in cifar_set().items()
    }


def python2_pickle(images: np.ndarray, labels: list[int]) -> bytes:
    """Byte for byte what Python 2 and numpy wrote into the genuine archive's parts."""

    def text(value: bytes) -> bytes:
        if len(value) < 256:
            return b"U" + bytes([len(value)]) + value
        return b"T" + struct.pack("<i", len(value)) + value

    number = [b"M" + struct.pack("<H", n) for n in (*images.shape, *labels)]
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b")
    array += b"\x87R(K\x01" + number[0] + number[1] + b"\x86" + dtype + b"\x89"
    array += text(images.tobytes()) + b"tb"
    body = text(b"batch_label") + text(b"training batch") + text(b"labels")
    body += b"](" + b"".join(number[2:]) + b"e" + text(b"data") + array
    return b"\x80\x02}(" + body + b"u."


def python3_pickle(images: np.ndarray, labels: list[int], protocol: int) -> bytes:
    return pickle.dumps({"data": images, "labels": labels}, protocol=protocol)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def write_tar(path: Path, files: Mapping[str, bytes], prefix: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def write_zip(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """A [H, W] or [H, W, 3] image as PNG or JPEG."""
    image = pytest.importorskip("PIL.Image").fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def write_parquet(
    path: Path, blobs: list[bytes | None], labels: list[int | None], column: str = "img"
) -> None:
    arrow = pytest.importorskip("pyarrow")
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": blob, "path": f"{n}.png"} for n, blob in enumerate(blobs)]
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    table = arrow.table(
        {column: arrow.array(images, kind), "label": arrow.array(labels, arrow.int64())}
    )
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=3)


def write_cifar_parquet(folder: Path, *, column: str = "img", kind: str = "PNG") -> np.ndarray:
    """Ten training and five test images; returns the training images [10, 32, 32, 3]."""
    images = noise(10, 32, 32, 3)
    blobs: list[bytes | None] = [encoded(image, kind) for image in images]
    labels: list[int | None] = list(range(10))
    write_parquet(folder / "train-00000-of-00001.parquet", blobs, labels, column)
    write_parquet(folder / "test-00000-of-00001.parquet", blobs[:5], labels[:5], column)
    return images


def tiny_imagenet_files(*, by_class: bool = False) -> dict[str, bytes]:
    """One training image of each of the 200 classes and three validation images."""
    # In no alphabetical order, as in the genuine file.
    wnids = [f"n{(n * 77) % 200:08d}" for n in range(200)]
    picture = encoded(noise(64, 64, 3), "JPEG")
    grey = encoded(noise(64, 64), "JPEG")
    files = {"wnids.txt": "\n".join(wnids).encode()}
    for n, wnid in enumerate(wnids):
        files[f"train/{wnid}/images/{wnid}_0.JPEG"] = grey if n == 0 else picture
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"ignored"
    chosen = {f"val_{n}.JPEG": wnids[n * 50] for n in range(3)}
    for name, wnid in chosen.items():
        files[f"val/{wnid}/{name}" if by_class else f"val/images/{name}"] = picture
    if not by_class:
        lines = (f"{name}\t{wnid}\t0\t0\t62\t57\n" for name, wnid in chosen.items())
        files["val/val_annotations.txt"] = "".join(lines).encode()
    files["test/images/test_0.JPEG"] = picture
    return files
