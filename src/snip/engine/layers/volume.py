"""Sparse 3-d convolutions, as 2-d ones: each depth of a channel becomes a channel of its own."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F

from snip.engine.kernels.conv import ConvIndex
from snip.engine.layers.conv import PackedConvolution
from snip.engine.layers.layouts import from_blocks, lanes_for, to_blocks
from snip.engine.layers.products import ConvProduct, SparseProducts

# A layer's weights are counted once for every two depths, while its index is made. Beyond so many,
# which is about 130 MB for a moment, volumes run dense.
MOST_FOLDED = 1 << 25


class SparseConv3d(PackedConvolution):
    """`nn.Conv3d` with only its surviving weights as parameters.

    A weight is used once for each depth of the outputs. In memory a depth of a channel is a plane,
    just as a channel of images is, so that the kernels of planes compute the rest.
    """

    POSITIONS = 3
    in_torch = F.conv3d

    def in_sparse(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through the native kernels."""
        if self.packed["weight"].total // self.kernel_size[0] * x.shape[2] ** 2 > MOST_FOLDED:
            return self.in_dense(x)
        key = (*x.shape[1:], lanes_for(len(x)))
        index, source = self.kept_index(key, partial(self._new_index, key))
        depth = index.out_shape[0] // self.out_channels
        bias = self.dense("bias")
        bias = None if bias is None else bias.repeat_interleave(depth)
        values = self.weight.index_select(0, source)
        blocks = to_blocks(x.flatten(1, 2)).contiguous()
        y = ConvProduct.apply(blocks, values, bias, SparseProducts(index), len(x), False)
        return from_blocks(y, len(x)).unflatten(1, (self.out_channels, depth))

    def _new_index(self, key: tuple[int, ...]) -> tuple[ConvIndex, torch.Tensor]:
        """Where the kernels find the weights, and which weight stands at each of their places."""
        channels, depth, height, width, lanes = key
        folded = self._folded(depth)
        settings = (self.stride[1:], self.padding_sizes[1:], self.dilation[1:], self.groups)
        planes = (channels * depth, height, width)
        index = ConvIndex(folded >= 0, planes, *settings, lanes)  # type: ignore[arg-type]
        return index, folded[folded >= 0]

    def _folded(self, depth: int) -> torch.Tensor:
        """[O * D', C / groups * D, kh, kw]: which surviving weight, by number; -1 where none is."""
        packed = self.packed["weight"]
        numbers = torch.full((packed.total,), -1, dtype=torch.int32)
        numbers[packed.positions] = torch.arange(packed.kept, dtype=torch.int32)
        numbers = numbers.view(packed.shape)
        size, step, apart = self.kernel_size[0], self.stride[0], self.dilation[0]
        padding = self.padding_sizes[0]
        made = (depth + 2 * padding - apart * (size - 1) - 1) // step + 1
        out, channels, _, *kernel = packed.shape
        folded = numbers.new_full((out, made, channels, depth, *kernel), -1)
        for to in range(made):
            for tap in range(size):
                at = to * step + tap * apart - padding
                if 0 <= at < depth:
                    folded[:, to, :, at] = numbers[:, :, tap]
        return folded.flatten(2, 3).flatten(0, 1)
