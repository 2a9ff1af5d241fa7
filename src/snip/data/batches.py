"""Epochs of normalised batches; every batch is a pure function of (seed, epoch, index)."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch

from snip.common.checks import checked_whole
from snip.common.errors import InputError
from snip.data import randomness
from snip.data.augment import Augmentation, augmented
from snip.data.split import Split


class Batches:
    """Cuts a split into batches of (float images, labels), shuffled anew in every epoch."""

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        mean: torch.Tensor,
        std: torch.Tensor,
        augment: Augmentation | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        _check_batch_size(batch_size, len(split), drop_last)
        randomness.stream(randomness.ORDER, seed)  # refuses a bad seed now, not at the first epoch
        self.split, self.batch_size, self.augment = split, batch_size, augment
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        # (x / 255 - mean) / std as one multiply and one add per pixel.
        exact_mean, exact_std = (v.double().numpy().reshape(-1, 1, 1) for v in (mean, std))
        self._scale = (1 / (255 * exact_std)).astype(np.float32)
        self._shift = (-exact_mean / exact_std).astype(np.float32)

    @property
    def images(self) -> int:
        """Images per epoch."""
        return len(self) * self.batch_size if self.drop_last else len(self.split)

    def __len__(self) -> int:
        """Batches per epoch."""
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of epoch 0."""
        return self.epoch(0)

    def epoch(self, number: int, *, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of one epoch from batch `start` on; earlier ones are never made."""
        if number < 0 or not 0 <= start <= len(self):
            raise InputError(
                f"epoch {number}, batch {start}: epochs count from 0, "
                f"and an epoch here has {len(self)} batches."
            )
        order = self._order(number)
        return (self._batch(order, number, index) for index in range(start, len(self)))

    def with_seed(self, seed: int) -> Batches:
        """The same images in another order, otherwise augmented."""
        other = copy.copy(self)
        other.seed = seed
        return other

    def _order(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(len(self.split))
        rng = randomness.stream(randomness.ORDER, self.seed, epoch)
        return rng.permutation(len(self.split))

    def _batch(
        self, order: np.ndarray, epoch: int, index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = order[index * self.batch_size : (index + 1) * self.batch_size]
        # numpy instead of torch: on a busy machine, small threaded operations wait for each other.
        # One name for every stage frees each array early, so that its memory serves the next stage.
        images, labels = self.split.images.numpy()[rows], self.split.labels.numpy()[rows]
        inside = None
        if self.augment is not None:
            rng = randomness.stream(randomness.AUGMENT, self.seed, epoch, index)
            images, inside = augmented(images, self.augment, rng)
        images = self._normalized(images)
        if inside is not None:
            # The border is zero after normalisation, the mean colour, as in the authors' code.
            images *= inside
        return torch.from_numpy(images), torch.from_numpy(labels)

    def _normalized(self, raw: np.ndarray) -> np.ndarray:
        images = raw.astype(np.float32)
        images *= self._scale
        images += self._shift
        return images


def _check_batch_size(batch_size: int, images: int, drop_last: bool) -> None:
    checked_whole("batch_size", batch_size, least=1)
    if drop_last and batch_size > images:
        raise InputError(
            f"batch_size is {batch_size} but there are only {images} images: with "
            "drop_last=True no batch is left. Pass a smaller batch_size."
        )
