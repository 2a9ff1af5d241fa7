"""What the first layer looks at, as counts to be drawn: per pixel, or per filter and position."""

from __future__ import annotations

import math

import torch

MOST_FILTERS = 256  # more would be too small to see


def pixels(mask: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor | None:
    """Kept connections per pixel [height, width] if the layer reads whole images, else None."""
    if mask.ndim != 2:
        return None
    per_input = mask.sum(0)
    if shape is None:
        shape = (1, 28, 28) if len(per_input) == 28 * 28 else None
    if shape is None or len(shape) not in (2, 3) or math.prod(shape) != len(per_input):
        return None
    return per_input.view(-1, *shape[-2:]).sum(0)


def shares(mask: torch.Tensor, shape: tuple[int, ...] | None) -> torch.Tensor | None:
    """The share of each pixel's connections that is kept, where `pixels` has counts.

    A pixel has one connection to each of the layer's outputs from each of its channels.
    """
    counts = pixels(mask, shape)
    return None if counts is None else counts / (mask.numel() // counts.numel())


def filters(mask: torch.Tensor) -> torch.Tensor | None:
    """Kept connections per filter and position [filters, height, width] of a 2-d convolution."""
    if mask.ndim != 4 or len(mask) > MOST_FILTERS or mask.shape[-1] == 1:
        return None
    return mask.sum(1)


def tiled(counts: torch.Tensor) -> torch.Tensor:
    """All filters of `filters` in one picture [height, width], with gaps of NaN between them."""
    number, height, width = counts.shape
    columns = math.ceil(math.sqrt(number))
    rows = math.ceil(number / columns)
    picture = torch.full((rows * (height + 1) - 1, columns * (width + 1) - 1), torch.nan)
    for index in range(number):
        top, left = index // columns * (height + 1), index % columns * (width + 1)
        picture[top : top + height, left : left + width] = counts[index].float()
    return picture
