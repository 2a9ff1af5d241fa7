"""Search: found where users have it, or refused with what to put where."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_layouts import (
    cifar_files,
    isolate,
    tiny_imagenet_files,
    write_cifar_parquet,
    write_files,
    write_idx,
    write_tar,
    write_zip,
)

import snip
from snip.common.errors import FileError, InputError
from snip.data import DATASETS, load


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


# --- where users have it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "below", ["", "FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist/data", "raw"]
)
def test_folders_of_fashion_mnist(tmp_path: Path, below: str) -> None:
    write_idx(tmp_path / "mine" / below)
    assert len(load("fashion-mnist", data_dir=tmp_path / "mine").train) == 12


@pytest.mark.parametrize("below", ["", "cifar10", "CIFAR-10", "cifar_10", "cifar10/plain_text"])
def test_folders_of_cifar(tmp_path: Path, below: str) -> None:
    write_cifar_parquet(tmp_path / "mine" / below)
    assert len(load("cifar-10", data_dir=str(tmp_path / "mine")).train) == 10


@pytest.mark.parametrize(
    "place",
    [
        "work/data",
        "work/datasets",
        "home/data",
        "home/.cache/torch/datasets",
        "home/.keras/datasets",
    ],
)
def test_usual_places(tmp_path: Path, place: str) -> None:
    write_files(tmp_path / place / "cifar-10-batches-py", cifar_files("py"))
    assert len(load("cifar-10").train) == 20


@pytest.mark.parametrize("place", ["work/data", "home/.keras/datasets"])
def test_archives_lie_bare_in_usual_places(tmp_path: Path, place: str) -> None:
    write_tar(tmp_path / place / "cifar-10-python.tar.gz", cifar_files("py"))
    write_zip(tmp_path / place / "tiny-imagenet-200.zip", tiny_imagenet_files())
    assert len(load("cifar-10").train) == 20
    assert len(load("tiny-imagenet").train) == 200


def test_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = "datasets--uoft-cs--cifar10/snapshots/0b27149/plain_text"
    write_cifar_parquet(tmp_path / "home/.cache/huggingface/hub" / inner)
    assert len(load("cifar-10").train) == 10
    monkeypatch.setenv("HF_HOME", str(tmp_path / "elsewhere"))
    with pytest.raises(FileError):
        load("cifar-10")
    write_cifar_parquet(tmp_path / "elsewhere/hub" / inner)
    assert len(load("cifar-10").train) == 10


def test_snip_data_comes_first_and_the_rest_is_still_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "work/data/cifar-10-batches-bin", cifar_files("bin"))
    write_cifar_parquet(tmp_path / "named/cifar10")
    monkeypatch.setenv("SNIP_DATA", str(tmp_path / "named"))
    assert len(load("cifar-10").train) == 10
    write_idx(tmp_path / "work/data/FashionMNIST/raw")
    assert len(load("fashion-mnist").train) == 12


def test_data_dir_is_the_only_place_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar_parquet(tmp_path / "named/cifar10")
    monkeypatch.setenv("SNIP_DATA", str(tmp_path / "named"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="empty"):
        load("cifar-10", data_dir=tmp_path / "empty")


def test_genuine_files_win_over_parquet(tmp_path: Path) -> None:
    write_cifar_parquet(tmp_path / "mine/cifar10", kind="JPEG")
    write_tar(tmp_path / "mine/cifar-10-python.tar.gz", cifar_files("py"))
    assert load("cifar-10", data_dir=tmp_path / "mine").note == "2 of 5000 images per class"


def test_files_of_unknown_origin_are_left_alone(tmp_path: Path) -> None:
    """Nobody said that what lies bare in ./data is this set: the names are anyone's."""
    write_idx(tmp_path / "work/data")
    write_cifar_parquet(tmp_path / "work/data")
    with pytest.raises(FileError, match="cifar-10 is not in"):
        load("cifar-10")


def test_mnist_of_the_package_unless_a_folder_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "mine/MNIST/raw")
    assert len(load("mnist", data_dir=tmp_path / "mine").train) == 12
    assert len(load("mnist", data_dir=tmp_path).train) == 60000


def test_a_data_set_is_named_in_the_table_alone() -> None:
    """Whatever is special about a set stands in its row."""
    source = Path(snip.__file__).parent
    readers = [*(source / "data").glob("*.py"), source / "cli" / "data.py"]
    named = {p.name for p in readers for name in DATASETS if f'"{name}"' in p.read_text()}
    assert named == {"table.py"}


# --- refusals ------------------------------------------------------------------------------------


def test_unknown_name() -> None:
    with pytest.raises(InputError, match=r"unknown data set 'cifar10': did you mean 'cifar-10'"):
        load("cifar10")


@pytest.mark.parametrize(
    ("name", "what"),
    [("cifar-10", "cifar-10-binary.tar.gz"), ("tiny-imagenet", "tiny-imagenet-200.zip")],
)
def test_refusal_says_what_to_put_where(name: str, what: str) -> None:
    with pytest.raises(FileError) as caught:
        load(name)
    sentence = str(caught.value)
    for word in (name, what, "FOLDER", "--data-dir", "SNIP_DATA", "download=True"):
        assert word in sentence


def test_named_folder_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match=r"named by --data-dir \(data_dir=\), does not exist"):
        load("cifar-10", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("SNIP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match="named by SNIP_DATA, does not exist"):
        load("cifar-10")
