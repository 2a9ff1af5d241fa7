"""Sparse 3-d convolutions, as 2-d ones: each depth of a channel becomes a channel of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from snip.engine.kernels.conv import ConvIndex
from snip.engine.kernels.conversions import LANES
from snip.engine.layers.conv import MOST_INDICES, pads_evenly
from snip.engine.layers.layouts import from_blocks, lanes_for, native, to_blocks
from snip.engine.layers.packing import DENSE, SPARSE, PackedModule
from snip.engine.layers.products import ConvProduct, SparseProducts

Triple = tuple[int, int, int]


class SparseConv3d(PackedModule):
    """`nn.Conv3d` with only its surviving weights as parameters.

    A weight is used once for each depth of the outputs. In memory a depth of a channel is a plane,
    just as a channel of images is, so that the kernels of planes compute the rest.
    """

    weight: torch.Tensor
    # Settings of nn.Conv3d, as it has them.
    in_channels: int
    out_channels: int
    kernel_size: Triple
    stride: Triple
    padding: Triple | str
    dilation: Triple
    groups: int

    @classmethod
    def covers(cls, layer: Any) -> bool:
        """Zero padding of the same width on both sides."""
        return super().covers(layer) and pads_evenly(layer)

    @property
    def padding_sizes(self) -> tuple[int, ...]:
        """The padding in numbers, where the setting may be a word."""
        if isinstance(self.padding, str):
            same = self.padding == "same"
            sizes = zip(self.dilation, self.kernel_size, strict=True)
            return tuple(same * d * (k - 1) // 2 for d, k in sizes)
        return self.padding

    def ways(self) -> tuple[str, ...]:
        """By the surviving weights, or in torch."""
        return SPARSE, DENSE

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [N, C, D, H, W] -> [N, O, D', H', W'], as nn.Conv3d does it."""
        if x.ndim == 4:
            return self.forward(x[None])[0]
        if self.way == DENSE or not native(x) or not native(self.weight) or not x.numel():
            return self.in_dense(x)
        index, source = self._index((*x.shape[1:],), lanes_for(len(x)))
        depth = index.out_shape[0] // self.out_channels
        bias = self.dense("bias")
        bias = None if bias is None else bias.repeat_interleave(depth)
        values = self.weight.index_select(0, source)
        blocks = to_blocks(x.flatten(1, 2)).contiguous()
        y = ConvProduct.apply(blocks, values, bias, SparseProducts(index), len(x), False)
        return from_blocks(y, len(x)).unflatten(1, (self.out_channels, depth))

    def in_dense(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through torch's own convolution: for layers that are hardly sparse."""
        settings = (self.stride, self.padding_sizes, self.dilation, self.groups)
        return F.conv3d(x, self.whole("weight"), self.dense("bias"), *settings)

    def _index(
        self, in_shape: tuple[int, ...], lanes: int = LANES
    ) -> tuple[ConvIndex, torch.Tensor]:
        """Where the kernels find the weights, and which weight stands at each of their places."""
        key = (*in_shape, lanes)
        if key not in self.indices:
            if len(self.indices) >= MOST_INDICES:
                del self.indices[next(iter(self.indices))]  # the oldest
            folded = self._folded(in_shape[1])
            settings = (self.stride[1:], self.padding_sizes[1:], self.dilation[1:], self.groups)
            planes = (in_shape[0] * in_shape[1], *in_shape[2:])
            index = ConvIndex(folded >= 0, planes, *settings, lanes)  # type: ignore[arg-type]
            self.indices[key] = index, folded[folded >= 0]
        found: tuple[ConvIndex, torch.Tensor] = self.indices[key]
        return found

    def _folded(self, depth: int) -> torch.Tensor:
        """[O * D', C / groups * D, kh, kw]: which surviving weight, by number; -1 where none is."""
        packed = self.packed["weight"]
        numbers = torch.full((packed.total,), -1)
        numbers[packed.positions] = torch.arange(packed.kept)
        numbers = numbers.view(packed.shape)
        size, step, apart = self.kernel_size[0], self.stride[0], self.dilation[0]
        padding = self.padding_sizes[0]
        made = (depth + 2 * padding - apart * (size - 1) - 1) // step + 1
        out, channels, _, *kernel = packed.shape
        folded = torch.full((out, made, channels, depth, *kernel), -1)
        for to in range(made):
            for tap in range(size):
                at = to * step + tap * apart - padding
                if 0 <= at < depth:
                    folded[:, to, :, at] = numbers[:, :, tap]
        return folded.flatten(2, 3).flatten(0, 1)

    def extra_repr(self) -> str:
        """For print(model)."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding_sizes}, "
            f"kept={self.packed['weight'].kept:,}"
        )
