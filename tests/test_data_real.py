"""The genuine files, where this machine has them: SNIP_DATA, or ../shared/data of the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from data_layouts import isolate

from snip.data import load

ROOT = Path(os.environ.get("SNIP_DATA") or Path(__file__).parents[2] / "shared" / "data")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


def real(below: str) -> Path:
    if not (ROOT / below).exists():
        pytest.skip(f"no {below} on this machine")
    return (ROOT / below).resolve()


def test_fashion_mnist() -> None:
    real("FashionMNIST/raw")
    data = load("fashion-mnist", data_dir=ROOT)
    assert (len(data.train), len(data.test), data.note) == (60000, 10000, "")
    assert data.train.labels[:5].tolist() == [9, 0, 0, 3, 0]
    assert data.mean.tolist() == pytest.approx([0.2860], abs=1e-4)
    assert data.std.tolist() == pytest.approx([0.3530], abs=1e-4)


@pytest.mark.parametrize(
    ("name", "folder", "part", "mean"),
    [
        ("cifar-10", "cifar10", "test", [0.494, 0.485, 0.451]),
        ("tiny-imagenet", "tiny-imagenet", "valid", [0.483, 0.451, 0.401]),
    ],
)
def test_parquet(tmp_path: Path, name: str, folder: str, part: str, mean: list[float]) -> None:
    """The test part in both places: decoding the training part would take too long here."""
    path = real(f"{folder}/{part}-00000-of-00001.parquet")
    for own in ("train", part):
        (tmp_path / f"{own}-00000-of-00001.parquet").symlink_to(path)
    data = load(name, data_dir=tmp_path)
    assert len(data.train) == len(data.test) == 10000
    assert np.bincount(data.test.labels).tolist() == [10000 // data.classes] * data.classes
    assert data.mean.tolist() == pytest.approx(mean, abs=0.01)
    assert ("JPEG-recompressed" in data.note) == (name == "cifar-10")
    assert f"{10000 // data.classes} of" in data.note
