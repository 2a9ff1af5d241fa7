"""The whole weight of a sparse layer that runs dense, because it is hardly sparse."""

from __future__ import annotations

from typing import Any

import torch

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import pack_weights, unpack_weights
from snip.engine.once import once_differentiable


class DenseWeight:
    """A matrix with the surviving weights in their places, kept between calls.

    Only the surviving weights are written, as the zeros stay, and only if they are not those that
    it has. They are compared, as `parameter.data` can change without a trace.
    """

    def __init__(self, index: LinearIndex) -> None:
        self.index = index
        with torch.inference_mode(False):  # it may be needed for training later
            self.matrix = torch.zeros(index.rows, index.columns, dtype=torch.float32, device="cpu")
        self.written: torch.Tensor | None = None  # the weights in it

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The matrix with these weights, differentiable."""
        return _Unpack.apply(values, self) if torch.is_grad_enabled() else self.holding(values)

    def holding(self, values: torch.Tensor) -> torch.Tensor:
        """The matrix with these weights."""
        bits = values.detach().view(torch.int32)  # as numbers, NaN would differ from itself
        if self.written is None or not torch.equal(self.written, bits):
            unpack_weights(self.index, values, self.matrix)
            # Torch does not see native code write. A forward pass before this one may have saved
            # the matrix for its backward pass, which has to fail now, as it would in torch.
            torch.autograd.graph.increment_version(self.matrix)
            self.written = bits.clone()
        return self.matrix


class _Unpack(torch.autograd.Function):
    """The matrix of the weights; only they get a gradient."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: DenseWeight) -> torch.Tensor:
        ctx.index = weight.index
        ctx.save_for_backward(values)  # so that torch notices if they change before the backward
        return weight.holding(values).detach()  # which shares the count of changes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        _ = ctx.saved_tensors  # raises if they changed
        return pack_weights(ctx.index, gradient.resolve_neg().contiguous()), None
