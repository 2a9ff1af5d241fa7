"""A sparse convolution: plain in and out by default, blocks inside a converted network."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.engine.kernels.conv import ConvIndex
from snip.engine.kernels.conversions import LANES
from snip.engine.kernels.winograd import WinogradShape
from snip.engine.layers.layouts import Pair, from_blocks, native, to_blocks
from snip.engine.layers.packing import DENSE, SPARSE, WAYS, WINOGRAD, PackedModule
from snip.engine.layers.products import After, ConvProduct, SparseProducts, WinogradProducts

MOST_INDICES = 8  # sizes of input whose index is kept


class SparseConv2d(PackedModule):
    """A convolution whose surviving weights are its only parameters."""

    weight: torch.Tensor
    # Settings of nn.Conv2d, as it has them.
    in_channels: int
    out_channels: int
    kernel_size: Pair
    stride: Pair
    padding: Pair | str
    dilation: Pair
    groups: int

    @classmethod
    def covers(cls, layer: Any) -> bool:
        """Zero padding of the same width on both sides."""
        return super().covers(layer) and layer.padding_mode == "zeros" and _is_symmetric(layer)

    @property
    def padding_sizes(self) -> Pair:
        """The padding in numbers, where the setting may be a word."""
        if self.padding == "valid":
            return (0, 0)
        if isinstance(self.padding, str):  # "same"
            (kh, kw), (dh, dw) = self.kernel_size, self.dilation
            return dh * (kh - 1) // 2, dw * (kw - 1) // 2
        return self.padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [N, C, H, W] -> [N, O, H', W'], as nn.Conv2d does it."""
        if x.ndim == 3:
            return self.forward(x[None])[0]
        if not self._takes(x) or not x.numel():
            return self.in_dense(x)
        return from_blocks(self._on_blocks(to_blocks(x), len(x), relu=False), len(x))

    def on_blocks(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        """Blocks -> blocks, with the ReLU behind it if there is one."""
        if not self._takes(x):
            y = self.in_dense(from_blocks(x, batch))
            return to_blocks(y.relu() if self.relu else y)
        return self._on_blocks(x, batch, relu=self.relu)

    def _takes(self, x: torch.Tensor) -> bool:
        """Whether the kernels take plain activations or blocks; torch says what is wrong else."""
        return native(x) and native(self.weight) and self._fits(x.shape)

    def _fits(self, shape: torch.Size) -> bool:
        """Whether there are as many channels as weights, and room for the kernel."""
        sizes = zip(shape[2:4], self.padding_sizes, self.dilation, self.kernel_size, strict=True)
        room = all(size + 2 * p > d * (k - 1) for size, p, d, k in sizes)
        return room and shape[1] == self.in_channels

    def _on_blocks(self, x: torch.Tensor, batch: int, *, relu: bool) -> torch.Tensor:
        bias = self.dense("bias")
        if not torch.is_grad_enabled():
            return self.infer(x, batch, After(bias=bias, relu=relu))
        x = x.contiguous()
        return ConvProduct.apply(x, self.weight, bias, self._products(x), batch, relu)

    def infer(self, x: torch.Tensor, batch: int, after: After) -> torch.Tensor:
        """Blocks -> blocks without gradients, which spares what autograd costs."""
        x = x.contiguous()
        return self._products(x).forward(self.weight, x, batch, after)

    def ways(self) -> tuple[str, ...]:
        """All three where the Winograd kernel covers this layer: 3 x 3, stride 1, one group."""
        plain = self.stride == self.dilation == (1, 1) and self.groups == 1
        small = self.kernel_size == (3, 3) and max(self.padding_sizes) <= 2
        return WAYS if plain and small else (SPARSE, DENSE)

    def _products(self, x: torch.Tensor) -> SparseProducts:
        channels, height, width, lanes = x.shape[1:]
        index = self.index((channels, height, width), lanes)
        if self.way != WINOGRAD or lanes != LANES:
            return SparseProducts(index)
        shape = WinogradShape(channels, self.out_channels, (height, width), self.padding_sizes)
        return WinogradProducts(index, self.packed["weight"], shape)

    def in_dense(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through torch's own convolution: for layers that are hardly sparse."""
        settings = (self.stride, self.padding_sizes, self.dilation, self.groups)
        return F.conv2d(x, self.whole("weight"), self.dense("bias"), *settings)

    def index(self, in_shape: tuple[int, int, int], lanes: int = LANES) -> ConvIndex:
        """Where the kernels find the weights: prepared once per size of input and lanes."""
        key = (*in_shape, lanes)
        if key not in self.indices:
            if len(self.indices) >= MOST_INDICES:
                del self.indices[next(iter(self.indices))]  # the oldest
            settings = (self.stride, self.padding_sizes, self.dilation, self.groups)
            self.indices[key] = ConvIndex(self.packed["weight"].mask, in_shape, *settings, lanes)
        index: ConvIndex = self.indices[key]
        return index

    def extra_repr(self) -> str:
        """For print(model)."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding_sizes}, "
            f"kept={self.packed['weight'].kept:,}"
        )


def _is_symmetric(layer: nn.Conv2d) -> bool:
    """Whether as much padding goes to the left and top as to the right and bottom."""
    if layer.padding != "same":
        return True
    return all(d * (k - 1) % 2 == 0 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
