"""The native products as differentiable functions."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from snip.engine.kernels.conv import (
    ConvIndex,
    conv_backward_input,
    conv_backward_weights,
    conv_forward,
)
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import linear_backward, linear_forward


class LinearProduct(torch.autograd.Function):
    """y = W x (+ bias) (then ReLU) on lines."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        index: LinearIndex,
        relu: bool,
    ) -> torch.Tensor:
        y = linear_forward(index, values, x, bias=bias, relu=relu)
        ctx.index = index
        ctx.save_for_backward(x, values, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        x, values, y = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        dx = torch.empty_like(x) if wanted[0] else None
        dw = torch.empty_like(values) if wanted[1] else None
        db = dy.new_empty(ctx.index.rows) if wanted[2] else None
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
        linear_backward(ctx.index, values, x, dy, y=y, dx=dx, dw=dw, db=db)
        return dx, dw, db, None, None


class ConvProduct(torch.autograd.Function):
    """y = convolution (+ bias) (then ReLU) on blocked activations."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        index: ConvIndex,
        batch: int,
        relu: bool,
    ) -> torch.Tensor:
        y = conv_forward(index, values, x, batch, bias=bias, relu=relu)
        ctx.index, ctx.batch = index, batch
        ctx.save_for_backward(x, values, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        x, values, y = ctx.saved_tensors
        wanted, index, batch = ctx.needs_input_grad, ctx.index, ctx.batch
        dy = dy.contiguous()
        if y is not None:
            dy = torch.ops.aten.threshold_backward(dy, y, 0)
        dx = conv_backward_input(index, values, dy, batch) if wanted[0] else None
        dw = conv_backward_weights(index, x, dy, batch) if wanted[1] else None
        db = _bias_gradient(dy, batch) if wanted[2] else None
        return dx, dw, db, None, None, None


def _bias_gradient(dy: torch.Tensor, batch: int) -> torch.Tensor:
    """Sum over everything but the channels, of real lanes only."""
    lanes = dy.shape[-1]
    whole, rest = divmod(batch, lanes)
    total = dy[:whole].sum((0, 2, 3, 4))
    return total + dy[whole, ..., :rest].sum((1, 2, 3)) if rest else total
