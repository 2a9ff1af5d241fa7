"""Pooling, means and padding on blocks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from snip.engine.kernels.memory import readable
from snip.engine.kernels.pool import (
    Window,
    max_pool,
    max_pool_backward,
    mean_pool,
    mean_pool_backward,
)
from snip.engine.layers.layouts import Pair, from_blocks, pair, to_blocks
from snip.engine.once import once_differentiable

Tensor = torch.Tensor


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: int, window: Window) -> Tensor:
        y, which = max_pool(x.contiguous(), batch, window)
        ctx.window = window
        ctx.save_for_backward(which)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        (which,) = ctx.saved_tensors
        return max_pool_backward(dy.resolve_neg().contiguous(), which, ctx.window), None, None


class _MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: int) -> Tensor:
        ctx.size = (x.shape[2], x.shape[3])
        return mean_pool(x.contiguous(), batch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return mean_pool_backward(dy, ctx.size), None


def max_pool_on_blocks(
    x: Tensor,
    batch: int,
    kernel_size: int | Pair,
    stride: int | Pair | None = None,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Max pooling, blocks -> blocks."""
    if not readable(x):
        settings = (kernel_size, stride, padding, dilation, ceil_mode)
        return to_blocks(F.max_pool2d(from_blocks(x, batch), *settings))
    settings = (kernel_size, stride, padding, dilation, ceil_mode)
    return _MaxPool.apply(x, batch, pool_window((x.shape[2], x.shape[3]), *settings))


def pool_window(
    in_size: Pair,
    kernel_size: int | Pair,
    stride: int | Pair | None,
    padding: int | Pair,
    dilation: int | Pair,
    ceil_mode: bool,
) -> Window:
    """A max pooling's settings, as torch takes them, on planes of one size."""
    pairs = (pair(kernel_size), pair(stride or kernel_size), pair(padding), pair(dilation))
    return Window(in_size, *pairs, ceil_mode)


def lines_settings(
    kernel_size: int | tuple[int],
    stride: int | tuple[int] | None,
    padding: int | tuple[int],
    dilation: int | tuple[int],
    ceil_mode: bool,
) -> tuple[Pair, Pair, Pair, Pair, bool]:
    """The settings of a 1-d max pooling for planes of height one."""
    sizes = (pair(size)[0] for size in (kernel_size, stride or kernel_size, padding, dilation))
    kernel, step, pad, apart = sizes
    return (1, kernel), (1, step), (0, pad), (1, apart), ceil_mode


def mean_on_blocks(x: Tensor, batch: int) -> Tensor:
    """Mean over height and width, blocks -> columns [C, N]."""
    return _MeanPool.apply(x, batch) if readable(x) else from_blocks(x, batch).mean((2, 3)).t()


def pad_on_blocks(x: Tensor, left: int, right: int, top: int, bottom: int) -> Tensor:
    """Zero padding of height and width."""
    return F.pad(x, (0, 0, left, right, top, bottom))
