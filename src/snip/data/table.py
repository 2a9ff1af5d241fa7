"""The table of data sets. To add one: a reader in a file here, if it needs its own, and a row."""

from __future__ import annotations

from pathlib import Path

from snip.data import cifar, tiny_imagenet
from snip.data.augment import Augmentation
from snip.data.idx import idx_layout
from snip.data.parquet import parquet_layout
from snip.data.spec import Layout, Remote, Spec

_IDX, _PARQUET = Layout(idx_layout), Layout(parquet_layout)
_PUT_THE_FOUR_FILES = (
    "put the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
    "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz"
)
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
            packaged=Path(__file__).parent / "mnist",
            first_labels=(5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
        ),
        Spec(
            "fashion-mnist",
            shape=(1, 28, 28),
            classes=10,
            per_class=6000,
            folders=("FashionMNIST",),
            layouts=(_IDX, _PARQUET),
            advice="install Debian's package dataset-fashion-mnist, or "
            f"{_PUT_THE_FOUR_FILES} into FOLDER/FashionMNIST/raw",
            first_labels=(9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
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
            "kmnist",  # Kuzushiji-MNIST: cursive Japanese characters in MNIST's format
            shape=(1, 28, 28),
            classes=10,
            per_class=6000,
            folders=("KMNIST",),
            layouts=(_IDX, _PARQUET),
            advice=f"{_PUT_THE_FOUR_FILES} into FOLDER/KMNIST/raw",
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
