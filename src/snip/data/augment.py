"""The CIFAR augmentation of the paper: random horizontal flip and translation, whole batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snip.common.errors import InputError


@dataclass(frozen=True)
class Augmentation:
    """Each image is mirrored with probability 1/2 and moved by up to `translate` pixels."""

    flip: bool = True
    translate: int = 4

    def __post_init__(self) -> None:
        if self.translate < 0:
            raise InputError(f"translate is {self.translate}: pass 0 or more pixels.")


def augmented(
    images: np.ndarray, augment: Augmentation, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None]:
    """The batch [N, C, H, W] mirrored and moved, and a map that is 1 where it shows image.

    The map is None if the image covers everything.
    """
    if augment.flip:
        images = flip_half(images, rng)
    if not augment.translate:
        return images, None
    return shift_at_random(images, augment.translate, rng)


def flip_half(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirror each image [N, C, H, W] left to right with probability 1/2, in place."""
    chosen = rng.random(len(images)) < 0.5
    images[chosen] = images[chosen, :, :, ::-1]
    return images


def shift_at_random(
    images: np.ndarray, margin: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Move each image by up to `margin` pixels. Also returns a map: 1 on the image, 0 around it."""
    count, channels, height, width = images.shape
    down, right = rng.integers(0, 2 * margin + 1, size=(2, count))
    centre = (..., slice(margin, margin + height), slice(margin, margin + width))
    padded = np.zeros((count, channels, height + 2 * margin, width + 2 * margin), images.dtype)
    padded[centre] = images
    inside = np.zeros(padded.shape[2:], dtype=np.float32)
    inside[centre] = 1
    windows = np.lib.stride_tricks.sliding_window_view
    moved = windows(padded, (height, width), axis=(2, 3))[np.arange(count), :, down, right]
    return moved, windows(inside, (height, width))[down, right][:, None]
