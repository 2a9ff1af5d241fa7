"""Data sets: exact statistics, a validation split that repeats, MNIST inside the package."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
import torch
from data_layouts import isolate

import snip.data
from snip.common.errors import InputError, KindError
from snip.data import Augmentation, Dataset, Split, load
from snip.data.dataset import channel_statistics


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


def made(count: int = 100, classes: int = 10) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(count) % classes)
    return Dataset.from_splits("made", split, split.subset(20), classes=classes)


# The well-known MD5s of the unpacked files.
MNIST = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@pytest.mark.parametrize("name", MNIST)
def test_packaged_mnist_is_genuine(name: str) -> None:
    packed = Path(snip.data.__file__).parent / "mnist" / f"{name}.gz"
    assert hashlib.md5(gzip.decompress(packed.read_bytes())).hexdigest() == MNIST[name]


def test_mnist_needs_nothing_but_the_package() -> None:
    mnist = load("mnist")
    assert mnist.train.images.shape == (60000, 1, 28, 28)
    assert mnist.test.images.shape == (10000, 1, 28, 28)
    assert mnist.train.images.dtype == torch.uint8
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert (mnist.classes, mnist.note, mnist.augment) == (10, "", None)
    assert mnist.mean.tolist() == pytest.approx([0.1306605], abs=1e-6)
    assert mnist.std.tolist() == pytest.approx([0.3081078], abs=1e-6)
    images, _ = next(mnist.training_batches(60000).epoch(0))
    assert abs(float(images.double().mean())) < 1e-5
    assert abs(float(images.double().std()) - 1) < 1e-5
    train, valid = mnist.split_validation()
    assert (len(train), len(valid)) == (54000, 6000)


def test_statistics_are_those_of_the_pixels() -> None:
    images = torch.randint(0, 256, (130, 3, 5, 7), dtype=torch.uint8)
    mean, std = channel_statistics(images)
    values = images.double().div(255).transpose(0, 1).flatten(1)
    torch.testing.assert_close(mean, values.mean(1).float())
    torch.testing.assert_close(std, values.std(1, correction=0).float())


def test_constant_channel_becomes_zeros() -> None:
    images = torch.full((4, 1, 2, 2), 51, dtype=torch.uint8)
    mean, std = channel_statistics(images)
    assert mean.tolist() == pytest.approx([0.2])
    assert std.tolist() == [1.0]


def test_validation_is_disjoint_whole_and_repeats() -> None:
    data = made(100)
    pictures = {tuple(image.flatten().tolist()) for image in data.train.images}
    train, valid = data.split_validation(0.25, seed=1)
    parts = [{tuple(i.flatten().tolist()) for i in part.images} for part in (train, valid)]
    assert (len(train), len(valid)) == (75, 25)
    assert parts[0] | parts[1] == pictures
    assert not parts[0] & parts[1]
    again = data.split_validation(0.25, seed=1)
    assert torch.equal(again[1].images, valid.images)
    assert torch.equal(again[0].labels, train.labels)
    other = data.split_validation(0.25, seed=2)[1]
    assert not torch.equal(other.images, valid.images)


def test_no_validation() -> None:
    data = made(20)
    train, valid = data.split_validation(0)
    assert train is data.train
    assert len(valid) == 0
    assert list(data.evaluation_batches(5, split=valid).epoch(0)) == []


@pytest.mark.parametrize("fraction", [1, -0.1, 10, float("nan")])
def test_bad_fraction(fraction: float) -> None:
    with pytest.raises(InputError, match="fraction is"):
        made().split_validation(fraction)


def test_subset_keeps_the_normalisation() -> None:
    data = made(50)
    small = data.subset(10, 5)
    assert (len(small.train), len(small.test)) == (10, 5)
    assert torch.equal(small.mean, data.mean)
    with pytest.raises(InputError, match="has 50 images"):
        data.subset(51, 5)


def test_training_batches_augment_and_evaluation_batches_do_not() -> None:
    split = made().train
    data = Dataset.from_splits("x", split, split, classes=10, augment=Augmentation())
    assert data.training_batches(4).augment == Augmentation()
    plain = data.evaluation_batches(4)
    assert plain.augment is None
    assert next(plain.epoch(0))[1].tolist() == [0, 1, 2, 3]


def test_bad_content_is_refused() -> None:
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.arange(3)
    with pytest.raises(KindError, match=r"images are torch.float32"):
        Split(images.float(), labels)
    with pytest.raises(KindError, match=r"labels are torch.int32"):
        Split(images, labels.int())
    with pytest.raises(InputError, match="3 images but 2 labels"):
        Split(images, labels[:2])
    with pytest.raises(InputError, match="training labels of x run from 0 to 2"):
        Dataset.from_splits("x", Split(images, labels), Split(images, labels), classes=2)
    with pytest.raises(InputError, match="no training images"):
        channel_statistics(images[:0])


def test_repr_says_what_it_is() -> None:
    assert repr(made(30)) == "Dataset(made: 30 + 20 images)"
    assert repr(made(30).train) == "Split(30 images of [3, 4, 4])"
