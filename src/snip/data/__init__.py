"""The paper's data sets, found where users have them and held whole in memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from snip.common.errors import FileError, nearest
from snip.data import cifar, tiny_imagenet
from snip.data.augment import Augmentation
from snip.data.batches import Batches
from snip.data.dataset import Dataset
from snip.data.download import download as download_file
from snip.data.idx import idx_layout
from snip.data.locate import check_named_folder, download_folder, find, places
from snip.data.parquet import parquet_layout
from snip.data.spec import Content, Layout, Reader, Remote, Spec
from snip.data.split import Split

__all__ = ["DATASETS", "Augmentation", "Batches", "Dataset", "Split", "load"]

_IDX, _PARQUET = Layout(idx_layout), Layout(parquet_layout)
_FASHION_HOMES = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
)


def _fashion(name: str, sha256: str) -> Remote:
    return Remote(name, sha256, tuple(home + name for home in _FASHION_HOMES))


DATASETS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(
            "mnist",
            shape=(1, 28, 28),
            classes=10,
            per_class=6000,
            folders=("MNIST",),
            layouts=(_IDX, _PARQUET),
            advice="it is part of the package",
        ),
        Spec(
            "fashion-mnist",
            shape=(1, 28, 28),
            classes=10,
            per_class=6000,
            folders=("FashionMNIST",),
            layouts=(_IDX, _PARQUET),
            advice="install Debian's package dataset-fashion-mnist, or put the four files "
            "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz "
            "and t10k-labels-idx1-ubyte.gz into FOLDER/FashionMNIST/raw",
            remotes=(
                _fashion(
                    "train-images-idx3-ubyte.gz",
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                ),
                _fashion(
                    "train-labels-idx1-ubyte.gz",
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                ),
                _fashion(
                    "t10k-images-idx3-ubyte.gz",
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                ),
                _fashion(
                    "t10k-labels-idx1-ubyte.gz",
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                ),
            ),
        ),
        Spec(
            "cifar-10",
            shape=(3, 32, 32),
            classes=10,
            per_class=5000,
            folders=("cifar10", "cifar-10-batches-py", "cifar-10-batches-bin"),
            layouts=(
                Layout(cifar.binary_layout, distinct=True),
                Layout(cifar.python_layout, distinct=True),
                _PARQUET,
            ),
            advice="put cifar-10-binary.tar.gz or cifar-10-python.tar.gz, unpacked or not, into "
            "FOLDER, or the hub's train-*.parquet and test-*.parquet into FOLDER/cifar10",
            # The binary version: its reader needs no pickle.
            remotes=(
                Remote(
                    "cifar-10-binary.tar.gz",
                    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                ),
            ),
            augment=Augmentation(flip=True, translate=4),
        ),
        Spec(
            "tiny-imagenet",
            shape=(3, 64, 64),
            classes=200,
            per_class=500,
            folders=("tiny-imagenet", "tiny-imagenet-200"),
            layouts=(
                Layout(tiny_imagenet.folder_layout),
                Layout(tiny_imagenet.zip_layout, distinct=True),
                _PARQUET,
            ),
            advice="put tiny-imagenet-200.zip or the folder tiny-imagenet-200 into FOLDER, or "
            "the hub's train-*.parquet and valid-*.parquet into FOLDER/tiny-imagenet",
            test_split=("valid", "validation", "val"),
            lossless=False,
            remotes=(
                Remote(
                    "tiny-imagenet-200.zip",
                    "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
                    (
                        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                    ),
                ),
            ),
        ),
    )
}


def load(
    name: str, *, data_dir: str | os.PathLike[str] | None = None, download: bool = False
) -> Dataset:
    """A data set by name, from `data_dir`, SNIP_DATA or the usual places; fetched only if asked."""
    if name not in DATASETS:
        raise nearest("data set", name, DATASETS)
    spec, folder = DATASETS[name], None if data_dir is None else Path(data_dir)
    if not download and name != "mnist":
        check_named_folder(folder)
    reader = _packaged(spec, folder) or find(spec, folder)
    if reader is None and download:
        _download(spec, folder)
        reader = find(spec, folder)
    if reader is None:
        raise FileError(f"{name} is not in {places(folder)}: {_advice(spec)}")
    content = reader()
    return Dataset.from_splits(
        name,
        content.train,
        content.test,
        classes=spec.classes,
        note=_note(spec, content),
        augment=spec.augment,
    )


def _packaged(spec: Spec, data_dir: Path | None) -> Reader | None:
    """MNIST ships with the package; only an explicit folder that holds it comes first."""
    if spec.name != "mnist":
        return None
    own = None if data_dir is None else find(spec, data_dir)
    return own or idx_layout(Path(__file__).parent / "mnist", spec)


def _download(spec: Spec, data_dir: Path | None) -> None:
    folder = download_folder(data_dir) / spec.folders[0]
    try:
        for remote in spec.remotes:
            download_file(remote, folder)
    except FileError as error:
        raise FileError(f"{error} Without a network, {_advice(spec)}") from error


def _advice(spec: Spec) -> str:
    return (
        f"{spec.advice}, and name FOLDER by --data-dir (data_dir=) or SNIP_DATA; "
        "where there is a network, --download (download=True) fetches it."
    )


def _note(spec: Spec, content: Content) -> str:
    """What must be said wherever an error measured on this copy is printed."""
    notes = ["JPEG-recompressed"] if content.jpeg and spec.lossless else []
    counts = torch.bincount(content.train.labels, minlength=spec.classes)
    if len(content.train) < spec.per_class * spec.classes:
        even = int(counts.min()) == int(counts.max())
        notes.append(
            f"{int(counts[0])} of {spec.per_class} images per class"
            if even
            else f"{len(content.train)} of {spec.per_class * spec.classes} training images"
        )
    return ", ".join(notes)
