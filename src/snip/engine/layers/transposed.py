"""Sparse transposed convolutions: forward, they do what a convolution does to gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from snip.engine.kernels.conv import (
    ConvIndex,
    conv_backward_weights,
    conv_forward,
    run_product,
)
from snip.engine.layers.conv import SparseConvolution
from snip.engine.layers.products import After, SparseProducts


@dataclass(frozen=True)
class TransposedProducts(SparseProducts):
    """The three products of the transpose of the convolution that `index` describes."""

    index: ConvIndex

    def forward(
        self, values: torch.Tensor, x: torch.Tensor, batch: int, after: After
    ) -> torch.Tensor:
        """The outputs, on blocks."""
        return run_product(self.index.backward_plan, values, x, batch, **vars(after))

    def to_input(self, values: torch.Tensor, dy: torch.Tensor, batch: int) -> torch.Tensor:
        """Gradient of the inputs."""
        return conv_forward(self.index, values, dy, batch)

    def to_weights(self, x: torch.Tensor, dy: torch.Tensor, batch: int) -> torch.Tensor:
        """Gradient of the surviving weights."""
        return conv_backward_weights(self.index, dy, x, batch)


class SparseTransposed(SparseConvolution):
    """What transposed convolutions over planes and lines share."""

    output_padding: tuple[int, ...]

    @classmethod
    def covers(cls, layer: Any) -> bool:
        """Outputs that a convolution takes back to as many positions as there were inputs."""
        added = zip(layer.output_padding, layer.stride, strict=True)
        return super().covers(layer) and all(extra < step for extra, step in added)

    def forward(self, x: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """As torch's layer does it; a size that is asked for is torch's business."""
        if output_size is None:
            return super().forward(x)
        extra = self.kind._output_padding(  # type: ignore[attr-defined]
            *(self, x, output_size, self.stride, self.padding, self.kernel_size, self.POSITIONS),
            self.dilation,
        )
        return self._in_torch(x, extra)

    def in_dense(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through torch's own transposed convolution."""
        return self._in_torch(x, self.output_padding)

    def _in_torch(self, x: torch.Tensor, output_padding: Any) -> torch.Tensor:
        settings = (self.stride, self.padding, output_padding, self.groups, self.dilation)
        return type(self).in_torch(x, self.whole("weight"), self.dense("bias"), *settings)

    def _products(self, x: torch.Tensor) -> SparseProducts:
        return TransposedProducts(super()._products(x).index)

    def _made(self, positions: Sequence[int]) -> list[int]:
        sizes = zip(
            *(positions, self.stride, self.padding_sizes, self.dilation, self.kernel_size),
            self.output_padding,
            strict=True,
        )
        return [(n - 1) * s - 2 * p + d * (k - 1) + extra + 1 for n, s, p, d, k, extra in sizes]

    def _new_index(self, in_shape: tuple[int, int, int], lanes: int) -> ConvIndex:
        made = self._made(in_shape[-self.POSITIONS :])
        height, width = made if self.POSITIONS == 2 else (1, *made)
        return super()._new_index((self.out_channels, height, width), lanes)


class SparseConvTranspose2d(SparseTransposed):
    """A transposed convolution whose surviving weights are its only parameters."""

    POSITIONS = 2
    in_torch = F.conv_transpose2d


class SparseConvTranspose1d(SparseTransposed):
    """The same over lines."""

    POSITIONS = 1
    in_torch = F.conv_transpose1d
