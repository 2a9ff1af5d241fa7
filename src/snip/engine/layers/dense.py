"""The whole weight of a sparse layer that runs dense, because it is hardly sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import pack_weights, unpack_weights


class DenseWeight:
    """A matrix with the surviving weights in their places, kept between calls.

    Only the surviving weights are written: the zeros stay. In inference not even those, as long as
    they are the same. They are compared, as `parameter.data` can change without a trace.
    """

    def __init__(self, index: LinearIndex) -> None:
        self.index = index
        with torch.inference_mode(False):  # it may be needed for training later
            self.matrix = torch.zeros(index.rows, index.columns)
        self.seen: torch.Tensor | None = None  # the weights in it, if the last call was inference

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The matrix with these weights, differentiable."""
        if torch.is_grad_enabled():
            self.seen = None
            return _Unpack.apply(values, self)
        if self.seen is None or not torch.equal(self.seen, values):
            unpack_weights(self.index, values, self.matrix)
            self.seen = values.clone()
        return self.matrix


class _Unpack(torch.autograd.Function):
    """The matrix of the weights; only they get a gradient."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: DenseWeight) -> torch.Tensor:
        ctx.index = weight.index
        unpack_weights(weight.index, values, weight.matrix)
        return weight.matrix.view_as(weight.matrix)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return pack_weights(ctx.index, gradient.resolve_neg().contiguous()), None
