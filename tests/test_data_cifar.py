"""CIFAR-10 as published: every form gives the same pixels; hostile files run nothing."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_layouts import (
    PARTS,
    cifar_files,
    cifar_set,
    empty_folder,
    noise,
    python2_pickle,
    python3_pickle,
    refused,
    write_files,
    write_tar,
)

from snip.data import Dataset, load
from snip.data.safe_pickle import load_arrays


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return empty_folder(monkeypatch, tmp_path)


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


class Misshapen:
    """Pickles as an array whose shape is none."""

    def __init__(self, shape: object) -> None:
        self.shape = shape

    def __reduce__(self) -> tuple[object, ...]:
        rebuild, arguments, _ = PICTURES.__reduce__()
        state = (1, self.shape, np.dtype("u1"), False, PICTURES.tobytes())
        return rebuild, arguments, state


def misshapen(shape: object) -> bytes:
    return pickle.dumps({"data": Misshapen(shape), "labels": [1, 2, 3, 4]}, protocol=2)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (pickle.dumps([1, 2]), "a list, not a dictionary"),
        (pickle.dumps({"labels": [1]}), "'data' is no array"),
        (python3_pickle(PICTURES.astype(np.float32), [1, 2, 3, 4], 2), "not of bytes"),
        (python3_pickle(PICTURES[:, :100], [1, 2, 3, 4], 2), "not (N, 3072)"),
        (misshapen(PICTURES.size), "has the shape 12288"),
        (misshapen(("a", 3072)), "has the shape ('a', 3072)"),
        (misshapen((-4, -3072)), "has the shape (-4, -3072)"),
        (misshapen(None), "has the shape None"),
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
