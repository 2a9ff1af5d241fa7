"""The CIFAR augmentation of the paper: random horizontal flip and translation, whole batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from snip.errors import InputError


@dataclass(frozen=True)
class Augmentation:
    """Each image is mirrored with probability 1/2 and moved by up to `translate` pixels."""

    flip: bool = True
    translate: int = 4

    def __post_init__(self) -> None:
        if self.translate < 0:
            raise InputError(f"translate is {self.translate}: pass 0 or more pixels.")


def flip_half(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirror each image [N, C, H, W] left to right with probability 1/2, in place."""
    chosen = rng.random(len(images)) < 0.5
    images[chosen] = images[chosen, :, :, ::-1]
    return images


def crop_at_random(padded: np.ndarray, margin: int, rng: np.random.Generator) -> np.ndarray:
    """Cut one window out of each image [N, C, H+2m, W+2m]: a shift by up to m pixels."""
    height, width = (size - 2 * margin for size in padded.shape[2:])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    down, right = rng.integers(0, 2 * margin + 1, size=(2, len(padded)))
    return windows[np.arange(len(padded)), :, down, right]
