"""Files that claim more than they hold, and caches: memory and room stay bounded."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_layouts import refused as data_refused
from data_layouts import write_idx
from hostile_masks import pruned

import snip
from snip.common.files import read_json, trim
from snip.data.cache import cached
from snip.data.safe_pickle import load_arrays
from snip.training.metrics import read_metrics
from snip.training.torch_files import read_torch


def test_an_enormous_file_is_not_read(tmp_path: Path) -> None:
    for name in ("result.json", "metrics.jsonl"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(snip.FileError, match="more than"):
        read_json(tmp_path / "result.json")
    with pytest.raises(snip.FileError, match="more than"):
        read_metrics(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("shape", [(70_000, 28, 28), (60_000, 28, 2**20), (2**32 - 1, 28, 28)])
def test_an_idx_file_cannot_claim_more_than_its_data_set_has(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4I", 0x803, *shape) + bytes(99))
    monkeypatch.setattr(np, "empty", lambda *_, **__: pytest.fail("memory was taken"))
    data_refused("fashion-mnist", tmp_path, str(path))


def test_an_archive_cannot_claim_a_long_name(tmp_path: Path) -> None:
    """tarfile reads a comment whole, and one of a gigabyte packs into a megabyte."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    content = gzip.compress(info.tobuf() + bytes(1 << 20))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content)
    data_refused("cifar-10", tmp_path, "bytes at once")


def test_a_pickle_cannot_claim_a_large_memo() -> None:
    good = pickle.dumps([1, 2], protocol=2)
    assert load_arrays(good) == [1, 2]
    with pytest.raises(ValueError, match="place 2147483647"):
        load_arrays(b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b".")


def test_a_torch_file_is_not_unpacked(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1000)}, tmp_path / "plain")
    with (
        zipfile.ZipFile(tmp_path / "plain") as plain,
        zipfile.ZipFile(tmp_path / "packed", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for info in plain.infolist():
            packed.writestr(info.filename, plain.read(info))
    assert read_torch(tmp_path / "plain", "copy it anew")["a"].shape == (1000,)
    with pytest.raises(zipfile.BadZipFile, match="compress"):
        read_torch(tmp_path / "packed", "copy it anew")


@pytest.mark.parametrize("size", [2**31 - 1, 2**20])
def test_a_tensor_cannot_be_larger_than_its_file(size: int, tmp_path: Path) -> None:
    """torch itself makes a storage as large as a tensor says that it is."""
    path, content = tmp_path / "it", io.BytesIO()
    torch.save({"a": torch.zeros(77)}, content)
    with zipfile.ZipFile(content) as old, zipfile.ZipFile(path, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            # 77 stands in the pickle twice: as the storage's length and as the tensor's size.
            new.writestr(info, data.replace(b"KM", b"J" + struct.pack("<i", size)))
    refused_as = (ValueError, RuntimeError)
    with pytest.raises(refused_as, match=r"larger|resiz|bound|storage"):
        read_torch(path, "copy it anew")
    torch.save({"a": torch.zeros(1).expand(size)}, path)
    with pytest.raises(ValueError, match="larger than the file"):
        read_torch(path, "copy it anew")


def test_masks_that_claim_an_enormous_sample(tmp_path: Path) -> None:
    model = pruned("mlp")
    masks = snip.held_masks(model)
    assert masks is not None
    with pytest.raises(snip.InputError, match="too large to try"):
        snip.report(model, masks.with_provenance(input_shape=(2**30, 2**30)))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_masks_that_claim_a_sample_of_any_kind() -> None:
    model = pruned("mlp")
    masks = snip.held_masks(model)
    assert masks is not None
    kinds = [name for name, value in vars(torch).items() if isinstance(value, torch.dtype)]
    for kind in kinds:
        claimed = masks.with_provenance(input_dtype=kind)
        if kind.startswith(("qint", "quint")):
            with pytest.raises(snip.InputError, match="cannot be made"):
                snip.report(model, claimed)
        else:
            assert snip.report(model, claimed).kept == masks.kept


def test_the_cache_of_decoded_images_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))
    monkeypatch.setattr("snip.data.cache.LARGEST", 5000)
    array, made = np.zeros(2000, dtype=np.uint8), []

    def get(key: str) -> None:
        cached(key, array.shape, lambda: (made.append(key), array)[1])
        for age, path in enumerate(sorted((tmp_path / "decoded").iterdir(), key=os.path.getmtime)):
            os.utime(path, (age, age))  # so that the order does not depend on a clock's grain

    for key in ("one", "two", "one", "three", "one", "two"):
        get(key)
    assert made == ["one", "two", "three", "two"]  # "two" went first, as it was not used again
    assert len(list((tmp_path / "decoded").iterdir())) == 2
    trim(tmp_path / "none", "*", 0, keep=tmp_path)


def test_a_cache_file_is_read_only_if_it_has_the_size_of_its_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))
    (tmp_path / "decoded").mkdir()
    os.mkfifo(tmp_path / "decoded" / "key-pipe.npy")
    with (tmp_path / "decoded" / "key-large.npy").open("wb") as file:
        np.save(file, np.zeros(10, dtype=np.uint8))
        file.truncate(1 << 40)
    assert cached("key", (3,), lambda: np.ones(3, dtype=np.uint8)).tolist() == [1, 1, 1]


def test_indices_of_a_sparse_convolution_are_bounded() -> None:
    model, batch = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3)), torch.randn(2, 1, 8, 8)
    masks = snip.Masks({"0.weight": torch.rand(8, 1, 3, 3) < 0.3})
    masks.apply(model)
    fast = snip.accelerate(model, batch, ways={"0": "sparse"})
    for size in range(8, 40):
        x = torch.randn(2, 1, size, size)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    layers = [layer for layer in fast.modules() if hasattr(layer, "indices")]
    assert layers
    assert all(len(layer.indices) <= 8 for layer in layers)
