"""The native products as differentiable functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from snip.engine.kernels.conv import (
    ConvIndex,
    conv_backward_input,
    conv_backward_weights,
    conv_forward,
)
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import (
    as_rows,
    linear_backward,
    linear_forward,
    plain_backward,
    plain_forward,
)
from snip.engine.kernels.memory import empty
from snip.engine.kernels.winograd import WinogradShape, winograd_forward
from snip.engine.layers.layouts import as_columns
from snip.engine.layers.packing import Packed
from snip.engine.once import once_differentiable

Link = tuple[LinearIndex, bool]  # a layer's index, and whether a ReLU follows


def linear_states(
    x: torch.Tensor,
    links: Sequence[Link],
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor | None],
) -> list[torch.Tensor]:
    """The activations in front of each layer, and the last layer's output."""
    states = [x]
    for (index, relu), weight, bias in zip(links, weights, biases, strict=True):
        states.append(linear_forward(index, weight, states[-1], bias=bias, relu=relu))
    return states


class LinearProducts(torch.autograd.Function):
    """y = W x (+ bias) (then ReLU) on columns, for one layer after the other."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, links: Sequence[Link], *tensors: torch.Tensor | None
    ) -> torch.Tensor:
        count = len(links)
        weights: Any = tensors[:count]
        states = linear_states(x, links, weights, tensors[count:])
        ctx.links = links
        ctx.save_for_backward(*weights, *states)
        return states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        links, wanted, count = ctx.links, ctx.needs_input_grad[2:], len(ctx.links)
        saved = ctx.saved_tensors  # read once: activation checkpointing forgets them then
        weights, states = saved[:count], saved[count:]
        gradients: list[Any] = [None] * (2 * count)
        dy = as_columns(dy)
        for i in reversed(range(count)):
            index, relu = links[i]
            dx = torch.empty_like(states[i]) if i or ctx.needs_input_grad[0] else None
            dw = torch.empty_like(weights[i]) if wanted[i] else None
            db = dy.new_empty(index.rows) if wanted[count + i] else None
            y = states[i + 1] if relu else None
            linear_backward(index, weights[i], states[i], dy, y=y, dx=dx, dw=dw, db=db)
            gradients[i], gradients[count + i] = dw, db
            if dx is not None:
                dy = dx
        return (dy if ctx.needs_input_grad[0] else None, None, *gradients)


class PlainProduct(torch.autograd.Function):
    """y = x W^T (+ bias) on plain activations of any number of dimensions.

    With `turned`, the index is of weights [in, out]. x is saved as it came, without a copy.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        index: LinearIndex,
        turned: bool,
    ) -> torch.Tensor:
        ctx.index, ctx.turned = index, turned
        ctx.save_for_backward(x, values)
        return plain_forward(index, values, x, bias=bias, turned=turned)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        x, values = ctx.saved_tensors
        wanted, rows, dy = ctx.needs_input_grad, as_rows(x), as_rows(dy)
        dx = empty(*rows.shape) if wanted[0] else None
        dw = empty(len(values)) if wanted[1] else None
        db = empty(dy.shape[1]) if wanted[2] else None
        plain_backward(ctx.index, values, rows, dy, dx=dx, dw=dw, db=db, turned=ctx.turned)
        return None if dx is None else dx.view(x.shape), dw, db, None, None


def plain_product(
    x: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    index: LinearIndex,
    *,
    turned: bool = False,
) -> torch.Tensor:
    """The same; without gradients, without what autograd costs."""
    if torch.is_grad_enabled():
        made: torch.Tensor = PlainProduct.apply(x, values, bias, index, turned)
        return made
    return plain_forward(index, values, x, bias=bias, turned=turned)


@dataclass(frozen=True)
class After:
    """What follows a convolution's sums in the same pass: times scale, plus bias, then ReLU."""

    scale: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    relu: bool = False


@dataclass(frozen=True)
class SparseProducts:
    """A convolution's three products, computed with its surviving weights."""

    index: ConvIndex

    def forward(
        self, values: torch.Tensor, x: torch.Tensor, batch: int, after: After
    ) -> torch.Tensor:
        """The outputs, on blocks."""
        return conv_forward(self.index, values, x, batch, **vars(after))

    def to_input(self, values: torch.Tensor, dy: torch.Tensor, batch: int) -> torch.Tensor:
        """Gradient of the inputs."""
        return conv_backward_input(self.index, values, dy, batch)

    def to_weights(self, x: torch.Tensor, dy: torch.Tensor, batch: int) -> torch.Tensor:
        """Gradient of the surviving weights."""
        return conv_backward_weights(self.index, x, dy, batch)


@dataclass(frozen=True)
class WinogradProducts(SparseProducts):
    """The same with the zeros filled in again, for layers on which dense Winograd is faster."""

    packed: Packed
    shape: WinogradShape

    def forward(
        self, values: torch.Tensor, x: torch.Tensor, batch: int, after: After
    ) -> torch.Tensor:
        """The outputs, on blocks."""
        dense = self.packed.unpack(values)
        return winograd_forward(self.shape, dense, x, batch, **vars(after))

    def to_input(self, values: torch.Tensor, dy: torch.Tensor, batch: int) -> torch.Tensor:
        """Gradient of the inputs."""
        dense = self.packed.unpack(values)
        return winograd_forward(self.shape.backward(), dense, dy, batch, back=True)


class ConvProduct(torch.autograd.Function):
    """y = convolution (+ bias) (then ReLU) on blocks."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        values: torch.Tensor,
        bias: torch.Tensor | None,
        products: SparseProducts,
        batch: int,
        relu: bool,
    ) -> torch.Tensor:
        y = products.forward(values, x, batch, After(bias=bias, relu=relu))
        ctx.products, ctx.batch = products, batch
        ctx.save_for_backward(x, values, y if relu else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        x, values, y = ctx.saved_tensors
        wanted, products, batch = ctx.needs_input_grad, ctx.products, ctx.batch
        dy = dy.resolve_neg().contiguous()
        if y is not None:
            dy = torch.ops.aten.threshold_backward(dy, y, 0)
        dx = products.to_input(values, dy, batch) if wanted[0] else None
        dw = products.to_weights(x, dy, batch) if wanted[1] else None
        db = _bias_gradient(dy, batch) if wanted[2] else None
        return dx, dw, db, None, None, None


def _bias_gradient(dy: torch.Tensor, batch: int) -> torch.Tensor:
    """Sum over everything but the channels, of real lanes only."""
    lanes = dy.shape[-1]
    whole, rest = divmod(batch, lanes)
    total = dy[:whole].sum((0, 2, 3, 4))
    return total + dy[whole, ..., :rest].sum((1, 2, 3)) if rest else total
