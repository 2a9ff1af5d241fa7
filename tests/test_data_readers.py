"""Readers: every layout gives the same pixels; damaged and hostile files are refused by name."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_layouts import (
    PARTS,
    cifar_files,
    cifar_set,
    encoded,
    idx_bytes,
    idx_set,
    isolate,
    noise,
    python2_pickle,
    python3_pickle,
    tiny_imagenet_files,
    write_cifar_parquet,
    write_files,
    write_idx,
    write_parquet,
    write_tar,
    write_zip,
)

from snip.data import Dataset, load
from snip.data.safe_pickle import load_arrays
from snip.errors import FileError, InputError


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def refused(name: str, folder: Path, *words: str) -> None:
    """Loading fails with one FileError whose sentence holds all the words."""
    with pytest.raises(FileError) as caught:
        load(name, data_dir=folder)
    for word in words:
        assert word in str(caught.value), str(caught.value)


# --- idx -----------------------------------------------------------------------------------------


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


def test_mnist_files_are_not_taken_for_fashion_mnist(folder: Path) -> None:
    write_idx(folder, packed=False)
    labels = np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, 3, 5])
    (folder / "train-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    refused("fashion-mnist", folder, "these are MNIST's files", "FashionMNIST")


# --- CIFAR-10 ------------------------------------------------------------------------------------


def write_cifar(folder: Path, form: str) -> None:
    version, kind = form.split()
    name = {"py": "python", "bin": "binary"}[version]
    if kind == "archive":
        archive = folder / f"cifar-10-{name}.tar.gz"
        write_tar(archive, cifar_files(version), f"cifar-10-batches-{version}/")
    else:
        inner = f"cifar-10-batches-{version}" if kind == "unpacked" else "."
        write_files(folder / inner, cifar_files(version))


def is_cifar_set(data: Dataset) -> bool:
    parts = cifar_set()
    images = np.concatenate([parts[name][0] for name in PARTS]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([parts[name][1] for name in PARTS])
    found = [torch.cat([data.train.images, data.test.images]), data.train.labels, data.test.labels]
    return (
        len(data.train) == 20
        and np.array_equal(found[0], images)
        and np.array_equal(torch.cat(found[1:]), labels)
    )


FORMS = ["py archive", "py unpacked", "py bare", "bin archive", "bin unpacked", "bin bare"]


@pytest.mark.parametrize("form", FORMS)
def test_cifar_forms(folder: Path, form: str) -> None:
    write_cifar(folder, form)
    data = load("cifar-10", data_dir=folder)
    assert is_cifar_set(data)
    assert data.augment is not None
    assert data.note == "2 of 5000 images per class"


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar_pickled_by_python_3(folder: Path, protocol: int) -> None:
    for name, (images, labels) in cifar_set().items():
        data = python3_pickle(images, [int(label) for label in labels], protocol)
        write_files(folder, {name: data})
    assert is_cifar_set(load("cifar-10", data_dir=folder))


class Hostile:
    """What a pickle can be: a command to run when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("form", ["py unpacked", "py archive"])
def test_hostile_pickle_runs_nothing(folder: Path, tmp_path: Path, form: str) -> None:
    target = tmp_path / "owned"
    files = cifar_files("py")
    files["data_batch_2"] = pickle.dumps({"data": Hostile(target), "labels": [1]}, protocol=2)
    if form == "py archive":
        write_tar(folder / "cifar-10-python.tar.gz", files, "cifar-10-batches-py/")
    else:
        write_files(folder / "cifar-10-batches-py", files)
    refused("cifar-10", folder, "data_batch_2", "system")
    assert not target.exists()


@pytest.mark.parametrize(
    "stream",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"c__builtin__\ngetattr\n.",
        b"cnumpy\nload\n.",
        b"cnumpy.core.multiarray\nfromfile\n.",
        b"csnip.data.safe_pickle\nload_arrays\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.",
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
        b"cnumpy\ndtype\n(NS'x'\nK\x01stb.",  # sets an attribute of the class itself
        b"Pid\n.",
        b"\x80\x02",
        b"",
        b"garbage",
    ],
)
def test_nothing_else_is_unpickled(stream: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        load_arrays(stream)


PICTURES = noise(4, 3072)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (pickle.dumps([1, 2]), "a list, not a dictionary"),
        (pickle.dumps({"labels": [1]}), "'data' is no array"),
        (python3_pickle(PICTURES.astype(np.float32), [1, 2, 3, 4], 2), "not of bytes"),
        (python3_pickle(PICTURES[:, :100], [1, 2, 3, 4], 2), "not (N, 3072)"),
        (python3_pickle(PICTURES, [1, 2, 3], 2), "3 labels for 4 images"),
        (python3_pickle(PICTURES, [1, 2, 3, 10], 2), "labels run from 1 to 10"),
        (python3_pickle(PICTURES, ["a", 2, 3, 4], 2), "no list of whole numbers"),
        (python2_pickle(PICTURES, [1, 2, 3, 4])[:-3000], "data_batch_4"),
    ],
)
def test_damaged_cifar_pickle(folder: Path, content: bytes, word: str) -> None:
    write_files(folder, {**cifar_files("py"), "data_batch_4": content})
    refused("cifar-10", folder, "data_batch_4", word)


def test_damaged_cifar_binary(folder: Path) -> None:
    files = cifar_files("bin")
    write_files(folder, {**files, "test_batch.bin": files["test_batch.bin"][:-1]})
    refused("cifar-10", folder, "test_batch.bin", "3073-byte records")
    write_files(folder, {"test_batch.bin": b"\x0a" + bytes(3072)})
    refused("cifar-10", folder, "test_batch.bin", "not 0 to 9")
    (folder / "test_batch.bin").unlink()
    refused("cifar-10", folder, "test_batch.bin", "no such file")


@pytest.mark.parametrize("keep", [0, 10, 5000])
def test_truncated_cifar_archive(folder: Path, keep: int) -> None:
    write_cifar(folder, "bin archive")
    path = folder / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:keep])
    refused("cifar-10", folder, str(path), "fetch it again")


@pytest.mark.parametrize("form", ["py archive", "bin archive"])
def test_cifar_archive_with_a_changed_byte_fails_its_checksum(folder: Path, form: str) -> None:
    write_cifar(folder, form)
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # a pixel: noise is stored, not compressed
    path.write_bytes(data)
    refused("cifar-10", folder, str(path), "fetch it again")


def test_cifar_archive_is_not_unpacked_to_disk(folder: Path, tmp_path: Path) -> None:
    path = folder / "cifar-10-binary.tar.gz"
    write_tar(path, {**cifar_files("bin"), "evil": b"x"}, "../../")
    before = sorted(tmp_path.rglob("*"))
    assert is_cifar_set(load("cifar-10", data_dir=folder))
    assert sorted(tmp_path.rglob("*")) == before


def test_cifar_archive_links_are_not_followed(folder: Path) -> None:
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as archive:
        for part in PARTS:
            member = tarfile.TarInfo(f"{part}.bin")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(member)
    refused("cifar-10", folder, "data_batch_1.bin", "missing")


# --- parquet -------------------------------------------------------------------------------------


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


# --- the cache of decoded images -----------------------------------------------------------------


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


# --- Tiny-ImageNet -------------------------------------------------------------------------------


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
