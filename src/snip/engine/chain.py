"""Linear layers one behind the other, as one differentiable function.

Once the products are sparse, a small network's step is bound by what torch spends per operation;
a chain spends it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import linear_backward, linear_forward
from snip.engine.layers import SparseLinear
from snip.engine.layout import native

Link = tuple[LinearIndex, bool]  # a layer's index, and whether a ReLU follows


def linear_chain(x: torch.Tensor, *layers: SparseLinear) -> torch.Tensor:
    """Lines through all `layers` in turn."""
    if not native(x) or any(layer.run_dense or not native(layer.weight) for layer in layers):
        for layer in layers:
            x = layer.on_lines(x)
        return x
    links = [(layer.index, layer.relu) for layer in layers]
    weights = [layer.weight for layer in layers]
    biases = [layer.dense("bias") for layer in layers]
    if not torch.is_grad_enabled():
        return _forward(x, links, weights, biases)[-1]
    return _Chain.apply(x, links, *weights, *biases)


def _forward(
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


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, links: Sequence[Link], *tensors: torch.Tensor | None
    ) -> torch.Tensor:
        count = len(links)
        weights: Any = tensors[:count]
        states = _forward(x, links, weights, tensors[count:])
        ctx.links = links
        ctx.save_for_backward(*weights, *states)
        return states[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        links, wanted, count = ctx.links, ctx.needs_input_grad[2:], len(ctx.links)
        weights, states = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        gradients: list[Any] = [None] * (2 * count)
        dy = dy if dy.stride(-1) == 1 else dy.contiguous()
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
