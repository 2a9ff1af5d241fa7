"""Epochs of normalised batches; every batch is a pure function of (seed, epoch, index)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from snip.data import randomness
from snip.data.augment import Augmentation, crop_at_random, flip_half
from snip.data.split import Split
from snip.errors import InputError, KindError


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
        exact_mean, exact_std = (value.double().reshape(-1, 1, 1) for value in (mean, std))
        self._scale = (1 / (255 * exact_std)).float()
        self._shift = (-exact_mean / exact_std).float()

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

    def _order(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(len(self.split))
        rng = randomness.stream(randomness.ORDER, self.seed, epoch)
        return rng.permutation(len(self.split))

    def _batch(
        self, order: np.ndarray, epoch: int, index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = order[index * self.batch_size : (index + 1) * self.batch_size]
        raw = self.split.images.numpy()[rows]
        labels = self.split.labels[torch.from_numpy(rows)]
        if self.augment is None:
            return self._normalized(torch.from_numpy(raw)), labels
        rng = randomness.stream(randomness.AUGMENT, self.seed, epoch, index)
        return self._augmented(raw, self.augment, rng), labels

    def _augmented(
        self, raw: np.ndarray, augment: Augmentation, rng: np.random.Generator
    ) -> torch.Tensor:
        if augment.flip:
            raw = flip_half(raw, rng)
        images, margin = self._normalized(torch.from_numpy(raw)), augment.translate
        if not margin:
            return images
        # Zeros enter after normalisation, as in the authors' code: the border has the mean colour.
        padded = torch.nn.functional.pad(images, (margin, margin, margin, margin))
        return torch.from_numpy(crop_at_random(padded.numpy(), margin, rng))

    def _normalized(self, raw: torch.Tensor) -> torch.Tensor:
        return raw.float().mul_(self._scale).add_(self._shift)


def _check_batch_size(batch_size: int, images: int, drop_last: bool) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):
        raise KindError(f"batch_size is {batch_size!r}: pass a whole number.")
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}: pass 1 or more.")
    if drop_last and batch_size > images:
        raise InputError(
            f"batch_size is {batch_size} but there are only {images} images: with "
            "drop_last=True no batch is left. Pass a smaller batch_size."
        )
