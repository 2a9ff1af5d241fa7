"""Conversions into, out of and between the engine's layouts, as differentiable functions.

plain:   [batch, ...], as torch has it
blocks:  [ceil(batch / lanes), C, H, W, lanes], a convolution's activations; with a single lane,
         for few images, that is the plain layout itself
columns: [features, batch], a linear or recurrent layer's activations, one sample a column
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from snip.engine.kernels.conversions import (
    LANES,
    blocks_to_columns,
    blocks_to_rows,
    columns_to_blocks,
    rows_to_blocks,
    rows_to_columns,
)
from snip.engine.kernels.memory import readable
from snip.engine.once import once_differentiable

PLAIN, BLOCKS, COLUMNS = "plain", "blocks", "columns"
Pair = tuple[int, int]
Change = Callable[[torch.Tensor], torch.Tensor]


class _Convert(torch.autograd.Function):
    """A change of layout: `there` forward, `back` for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Change, back: Change) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(dy.resolve_neg()), None, None


FEW_IMAGES = 8  # fewer images than this would leave most lanes of a block idle


def lanes_for(batch: int) -> int:
    """Lanes of the blocks for so many images: one for a few images without gradients."""
    return 1 if batch < FEW_IMAGES and not torch.is_grad_enabled() else LANES


def to_blocks(x: torch.Tensor) -> torch.Tensor:
    """[N, C, H, W] -> blocks; lines [N, C, L] are planes of height one."""
    x = x.resolve_neg()
    x = x[:, :, None] if x.ndim == 3 else x
    if lanes_for(len(x)) == 1:
        return x.contiguous()[..., None]
    if readable(x):
        batch = len(x)  # not in the lambda, which would keep x alive until the backward pass
        return _Convert.apply(x, rows_to_blocks, lambda dy: _to_rows(dy, batch))
    padded = F.pad(x, (0, 0, 0, 0, 0, 0, 0, -len(x) % LANES))
    return padded.unflatten(0, (-1, LANES)).permute(0, 2, 3, 4, 1)


def from_blocks(x: torch.Tensor, batch: int) -> torch.Tensor:
    """blocks -> [N, C, H, W]."""
    if x.shape[-1] == 1:
        return x[..., 0]
    if readable(x):
        return _Convert.apply(x, lambda x: _to_rows(x, batch), rows_to_blocks)
    return x.permute(0, 4, 1, 2, 3).flatten(0, 1)[:batch]


def from_lines(x: torch.Tensor, batch: int) -> torch.Tensor:
    """blocks of height one -> [N, C, L]."""
    return from_blocks(x, batch)[:, :, 0]


def _to_rows(blocks: torch.Tensor, batch: int) -> torch.Tensor:
    return blocks_to_rows(blocks.contiguous(), batch)


def flatten_blocks(x: torch.Tensor, batch: int) -> torch.Tensor:
    """blocks -> [C * H * W, N]: what flatten(1) is to plain activations."""
    if not readable(x):
        return from_blocks(x, batch).flatten(1).t()
    shape = x.shape[1:-1]
    return _Convert.apply(
        x,
        lambda x: blocks_to_columns(x.contiguous(), batch),
        lambda dy: columns_to_blocks(as_columns(dy), shape),
    )


def to_columns(x: torch.Tensor) -> torch.Tensor:
    """[N, features] -> [features, N]."""
    x = x.resolve_neg()
    return _Convert.apply(x, rows_to_columns, torch.t) if readable(x) else x.t()


def from_columns(x: torch.Tensor) -> torch.Tensor:
    """[features, N] -> [N, features], contiguous as a layer's output usually is."""
    return x.t().contiguous()


def as_columns(x: torch.Tensor) -> torch.Tensor:
    """[features, N] with the columns side by side, copied only where they are not.

    A negated view, which a gradient can be, is copied as well: its memory has the opposite sign.
    """
    x = x.resolve_neg()
    return x if x.stride(1) == 1 else x.clone(memory_format=torch.contiguous_format)


def pair(value: int | tuple[int, ...]) -> Pair:
    """A setting for both directions; a single number stands for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def batch_size(x: torch.Tensor) -> int:
    """N of a plain tensor."""
    return x.shape[0]
