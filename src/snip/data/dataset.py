"""A data set: training and test images, and what is needed to normalise them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from snip.common.errors import InputError
from snip.data import randomness
from snip.data.augment import Augmentation
from snip.data.batches import Batches
from snip.data.split import Split

DIGESTED = 500  # about so many images of each part are part of the identity


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images with the training images' mean and std per channel, [C]."""

    name: str
    train: Split
    test: Split
    classes: int
    mean: torch.Tensor
    std: torch.Tensor
    note: str = ""  # to be printed beside every error measured on it, such as "JPEG-recompressed"
    augment: Augmentation | None = None

    def __post_init__(self) -> None:
        for kind, split in (("training", self.train), ("test", self.test)):
            if len(split) and not 0 <= int(split.labels.min()) <= int(split.labels.max()) < (
                self.classes
            ):
                raise InputError(
                    f"the {kind} labels of {self.name} run from {int(split.labels.min())} to "
                    f"{int(split.labels.max())}, but there are {self.classes} classes: "
                    f"labels must be 0 to {self.classes - 1}."
                )

    def __repr__(self) -> str:
        note = f", {self.note}" if self.note else ""
        return f"Dataset({self.name}: {len(self.train)} + {len(self.test)} images{note})"

    @classmethod
    def from_splits(
        cls,
        name: str,
        train: Split,
        test: Split,
        *,
        classes: int,
        note: str = "",
        augment: Augmentation | None = None,
    ) -> Dataset:
        """A data set normalised by the statistics of its training images."""
        mean, std = channel_statistics(train.images)
        return cls(name, train, test, classes, mean, std, note, augment)

    def identity(self) -> dict[str, Any]:
        """What tells this data from other data of the same name. It is quick: no full checksum."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            # All labels, but only a sample of the pixels: a large set has gigabytes of them.
            step = max(1, len(split) // DIGESTED)
            digest.update(split.labels.numpy().tobytes())
            digest.update(split.images[::step].numpy().tobytes())
        digest.update(self.mean.numpy().tobytes() + self.std.numpy().tobytes())
        return {
            "dataset": self.name,
            "dataset.train": len(self.train),
            "dataset.test": len(self.test),
            "dataset.note": self.note,
            "dataset.augment": repr(self.augment),
            "dataset.digest": digest.hexdigest()[:16],
        }

    def split_validation(self, fraction: float = 0.1, seed: int = 0) -> tuple[Split, Split]:
        """(training, validation): a random `fraction` held out, the same for the same seed."""
        if not 0 <= fraction < 1:
            raise InputError(f"fraction is {fraction}: pass 0 or more and less than 1, such as 0.1")
        count = len(self.train)
        order = randomness.stream(randomness.VALIDATION, seed).permutation(count)
        held_out = torch.zeros(count, dtype=torch.bool)
        held_out[torch.from_numpy(order[: round(count * fraction)])] = True
        if not held_out.any():
            return self.train, self.train.subset(0)
        return self.train.take(~held_out), self.train.take(held_out)

    def with_shuffled_labels(self, seed: int = 0) -> Dataset:
        """The same images with the training labels dealt out anew; the test labels stay."""
        order = randomness.stream(randomness.LABELS, seed).permutation(len(self.train))
        labels = self.train.labels[torch.from_numpy(order)]
        return replace(self, train=Split(self.train.images, labels))

    def inverted(self) -> Dataset:
        """The same with dark and bright swapped, normalised by its own statistics."""
        train, test = (Split(255 - part.images, part.labels) for part in (self.train, self.test))
        return replace(self, train=train, test=test, mean=1 - self.mean)

    def subset(self, train: int, test: int) -> Dataset:
        """The first `train` and `test` images with the whole set's normalisation."""
        return replace(self, train=self.train.subset(train), test=self.test.subset(test))

    def training_batches(
        self, batch_size: int, *, split: Split | None = None, seed: int = 0, drop_last: bool = False
    ) -> Batches:
        """Shuffled, augmented batches of `split` (or the whole training set)."""
        return Batches(
            self.train if split is None else split,
            batch_size,
            mean=self.mean,
            std=self.std,
            augment=self.augment,
            seed=seed,
            drop_last=drop_last,
        )

    def evaluation_batches(self, batch_size: int, *, split: Split | None = None) -> Batches:
        """Batches of `split` (or the test set) in order, as they are."""
        chosen = self.test if split is None else split
        return Batches(chosen, batch_size, mean=self.mean, std=self.std, shuffle=False)


def channel_statistics(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and std per channel of uint8 images [N, C, H, W] after division by 255."""
    if not images.numel():
        raise InputError("no training images: their mean and std are not defined.")
    pixels = images.flatten(2).numpy()
    total = np.zeros(images.shape[1], dtype=np.int64)
    squares = np.zeros_like(total)
    # The sums are of whole numbers, so they are exact; a chunk fits into the processor's cache.
    for start in range(0, len(pixels), 64):
        values = pixels[start : start + 64].astype(np.int32)
        total += values.sum(2).sum(0)
        values *= values
        squares += values.sum(2).sum(0)
    count = pixels.shape[0] * pixels.shape[2]
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[std == 0] = 255.0  # a constant channel becomes zeros, not NaN
    return torch.from_numpy(mean / 255).float(), torch.from_numpy(std / 255).float()
