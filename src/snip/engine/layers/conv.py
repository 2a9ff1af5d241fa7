"""A sparse convolution: plain in and out by default, blocks inside a converted network."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.engine.kernels.conv import ConvIndex
from snip.engine.kernels.conversions import LANES
from snip.engine.kernels.winograd import WinogradShape
from snip.engine.layers.layouts import Pair, from_blocks, native, pair, to_blocks
from snip.engine.layers.packing import DENSE, SPARSE, WAYS, WINOGRAD, PackedModule
from snip.engine.layers.products import After, ConvProduct, SparseProducts, WinogradProducts


class SparseConv2d(PackedModule):
    """A convolution whose surviving weights are its only parameters."""

    weight: torch.Tensor
    relu = False

    def __init__(
        self, layer: nn.Conv2d, mask: torch.Tensor | None, bias_mask: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.stride, self.dilation = pair(layer.stride), pair(layer.dilation)
        self.padding, self.groups = _padding(layer), layer.groups
        self.add_packed("weight", layer.weight, mask)
        self.add_packed("bias", layer.bias, bias_mask)
        self.indices: dict[tuple[int, ...], ConvIndex] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [N, C, H, W] -> [N, O, H', W']."""
        if x.ndim == 3:
            return self.forward(x[None])[0]
        if not native(x) or not native(self.weight) or not x.numel():
            return self.in_dense(x)
        return from_blocks(self.on_blocks(to_blocks(x), len(x)), len(x))

    def on_blocks(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        """Blocks -> blocks."""
        if not native(x) or not native(self.weight):
            return to_blocks(self.in_dense(from_blocks(x, batch)))
        if not torch.is_grad_enabled():
            return self.infer(x, batch, After(bias=self.dense("bias"), relu=self.relu))
        x, bias = x.contiguous(), self.dense("bias")
        return ConvProduct.apply(x, self.weight, bias, self._products(x), batch, self.relu)

    def infer(self, x: torch.Tensor, batch: int, after: After) -> torch.Tensor:
        """Blocks -> blocks without gradients."""
        x = x.contiguous()
        return self._products(x).forward(self.weight, x, batch, after)

    def ways(self) -> tuple[str, ...]:
        """All three where the Winograd kernel covers this layer: 3 x 3, stride 1, one group."""
        plain = self.stride == self.dilation == (1, 1) and self.groups == 1
        small = self.packed["weight"].shape[2:] == (3, 3) and max(self.padding) <= 2
        return WAYS if plain and small else (SPARSE, DENSE)

    def _products(self, x: torch.Tensor) -> SparseProducts:
        channels, height, width, lanes = x.shape[1:]
        index = self.index((channels, height, width), lanes)
        if self.way != WINOGRAD or lanes != LANES:
            return SparseProducts(index)
        shape = WinogradShape(channels, index.out_shape[0], (height, width), self.padding)
        return WinogradProducts(index, self.packed["weight"], shape)

    def in_dense(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through torch's own convolution: for layers that are hardly sparse."""
        weight = self.dense("weight")
        assert weight is not None
        y = F.conv2d(
            x, weight, self.dense("bias"), self.stride, self.padding, self.dilation, self.groups
        )
        return y.relu() if self.relu else y

    def index(self, in_shape: tuple[int, int, int], lanes: int = LANES) -> ConvIndex:
        """Prepared once per size of input and number of lanes."""
        key = (*in_shape, lanes)
        if key not in self.indices:
            self.indices[key] = ConvIndex(
                self.packed["weight"].mask,
                in_shape,
                *(self.stride, self.padding, self.dilation, self.groups, lanes),
            )
        return self.indices[key]

    def __getstate__(self) -> dict[str, Any]:
        # Indices hold addresses of this process, and are quickly prepared again.
        return self.__dict__ | {"indices": {}}

    def extra_repr(self) -> str:
        """For print(model)."""
        out, inputs, *kernel = self.packed["weight"].shape
        return (
            f"{inputs * self.groups}, {out}, kernel_size={tuple(kernel)}, stride={self.stride}, "
            f"padding={self.padding}, kept={self.packed['weight'].kept:,}"
        )


def convertible(layer: nn.Module) -> bool:
    """Whether the engine has a sparse layer for this one."""
    if type(layer) is nn.Conv2d:
        return layer.padding_mode == "zeros" and _padding_is_symmetric(layer)
    return type(layer) is nn.Linear


def _padding(layer: nn.Conv2d) -> Pair:
    if layer.padding == "valid":
        return (0, 0)
    if layer.padding == "same":
        sizes = zip(pair(layer.kernel_size), pair(layer.dilation), strict=True)
        height, width = (dilation * (k - 1) // 2 for k, dilation in sizes)
        return height, width
    assert not isinstance(layer.padding, str)
    return pair(layer.padding)


def _padding_is_symmetric(layer: nn.Conv2d) -> bool:
    if layer.padding != "same":
        return True
    return all(d * (k - 1) % 2 == 0 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))
