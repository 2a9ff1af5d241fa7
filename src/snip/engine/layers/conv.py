"""Sparse convolutions: plain in and out by default, blocks inside a converted network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from snip.engine.kernels.conv import ConvIndex
from snip.engine.kernels.conversions import LANES
from snip.engine.kernels.memory import readable
from snip.engine.kernels.winograd import WinogradShape
from snip.engine.layers.layouts import Pair, from_blocks, from_lines, to_blocks
from snip.engine.layers.packing import DENSE, SPARSE, WAYS, WINOGRAD, PackedModule
from snip.engine.layers.products import After, ConvProduct, SparseProducts, WinogradProducts

MOST_INDICES = 8  # sizes of input whose index is kept
LIGHT_KERNEL = 25  # positions that a light depthwise layer reads at most


class PackedConvolution(PackedModule):
    """What all convolutions share: settings, torch's own way, an index per size of input."""

    POSITIONS: int  # dimensions of positions
    in_torch: Callable[..., torch.Tensor]  # torch's own function

    weight: torch.Tensor
    # Settings of torch's convolutions, as they have them: one number per dimension of positions.
    in_channels: int
    out_channels: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def covers(cls, layer: Any) -> bool:
        """Zero padding of the same width on both sides."""
        return super().covers(layer) and _pads_evenly(layer)

    def ways(self) -> tuple[str, ...]:
        """By the surviving weights, or in torch."""
        return SPARSE, DENSE

    @property
    def padding_sizes(self) -> tuple[int, ...]:
        """The padding in numbers, where the setting may be a word."""
        if self.padding == "valid":
            return (0,) * self.POSITIONS
        if isinstance(self.padding, str):  # "same"
            sizes = zip(self.dilation, self.kernel_size, strict=True)
            return tuple(d * (k - 1) // 2 for d, k in sizes)
        return self.padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [N, C, *positions] -> [N, O, *positions], as torch's layer does it."""
        if x.ndim == self.POSITIONS + 1:
            return self.forward(x[None])[0]
        if self.way == DENSE or not self._takes(x, x.shape[2:]) or not x.numel():
            return self.in_dense(x)
        return self.in_sparse(x)

    def _takes(self, x: torch.Tensor, positions: Sequence[int]) -> bool:
        """Whether the kernels take activations over these positions; torch says what is wrong else.

        Plain activations and blocks both have their channels in the second dimension.
        """
        known = len(positions) == self.POSITIONS and readable(x) and readable(self.weight)
        return known and x.shape[1] == self.in_channels and min(self._made(positions)) > 0

    def _made(self, positions: Sequence[int]) -> list[int]:
        """How many positions come out along each dimension."""
        sizes = zip(
            *(positions, self.stride, self.padding_sizes, self.dilation, self.kernel_size),
            strict=True,
        )
        return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, s, p, d, k in sizes]

    def in_sparse(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through the native kernels, with conversions before and after."""
        raise NotImplementedError

    def in_dense(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through torch's own convolution: for layers that are hardly sparse."""
        settings = (self.stride, self.padding_sizes, self.dilation, self.groups)
        return type(self).in_torch(x, self.whole("weight"), self.dense("bias"), *settings)

    def kept_index(self, key: tuple[int, ...], make: Callable[[], Any]) -> Any:
        """Where the kernels find the weights: prepared once per size of input and lanes."""
        if key not in self.indices:
            if len(self.indices) >= MOST_INDICES:
                del self.indices[next(iter(self.indices))]  # the oldest
            with torch.inference_mode(False):  # a tensor of inference could not be trained with
                self.indices[key] = make()
        return self.indices[key]

    def extra_repr(self) -> str:
        """For print(model)."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding_sizes}, "
            f"kept={self.packed['weight'].kept:,}"
        )


class SparseConvolution(PackedConvolution):
    """What convolutions over planes and lines share; a line is a plane of height one."""

    def in_sparse(self, x: torch.Tensor) -> torch.Tensor:
        """Plain activations through the native kernels, where that can pay."""
        if not torch.is_grad_enabled() and self._is_light():
            return self.in_dense(x)
        return self._plain(self._on_blocks(to_blocks(x), len(x), relu=False), len(x))

    def on_blocks(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        """Blocks -> blocks, with the ReLU behind it if there is one."""
        if not self._takes(x, x.shape[4 - self.POSITIONS : 4]):
            y = self.in_dense(self._plain(x, batch))
            return to_blocks(y.relu() if self.relu else y)
        return self._on_blocks(x, batch, relu=self.relu)

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

    def _is_light(self) -> bool:
        """Whether inference costs no more than the conversions before and after it.

        So it is with depthwise layers of small kernels (python bench/layers.py depthwise).
        """
        return self.groups == self.in_channels > 1 and math.prod(self.kernel_size) <= LIGHT_KERNEL

    def _plain(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        return from_blocks(x, batch) if self.POSITIONS == 2 else from_lines(x, batch)

    def _products(self, x: torch.Tensor) -> SparseProducts:
        channels, height, width, lanes = x.shape[1:]
        return SparseProducts(self.index((channels, height, width), lanes))

    def index(self, in_shape: tuple[int, int, int], lanes: int = LANES) -> ConvIndex:
        """Where the kernels find the weights, for inputs of one size."""
        make = partial(self._new_index, in_shape, lanes)
        index: ConvIndex = self.kept_index((*in_shape, lanes), make)
        return index

    def _new_index(self, in_shape: tuple[int, int, int], lanes: int) -> ConvIndex:
        mask = self.packed["weight"].mask
        return ConvIndex(
            mask if self.POSITIONS == 2 else mask[:, :, None],
            in_shape,
            stride=_on_plane(self.stride, 1),
            padding=_on_plane(self.padding_sizes, 0),
            dilation=_on_plane(self.dilation, 1),
            groups=self.groups,
            lanes=lanes,
        )


class SparseConv2d(SparseConvolution):
    """A convolution whose surviving weights are its only parameters."""

    POSITIONS = 2
    in_torch = F.conv2d

    def ways(self) -> tuple[str, ...]:
        """All three where the Winograd kernel covers this layer: 3 x 3, stride 1, one group."""
        plain = self.stride == self.dilation == (1, 1) and self.groups == 1
        small = self.kernel_size == (3, 3) and max(self.padding_sizes) <= 2
        return WAYS if plain and small else (SPARSE, DENSE)

    def _products(self, x: torch.Tensor) -> SparseProducts:
        sparse = super()._products(x)
        channels, height, width, lanes = x.shape[1:]
        if self.way != WINOGRAD or lanes != LANES:
            return sparse
        padding = _on_plane(self.padding_sizes, 0)
        shape = WinogradShape(channels, self.out_channels, (height, width), padding)
        return WinogradProducts(sparse.index, self.packed["weight"], shape)


class SparseConv1d(SparseConvolution):
    """The same over lines."""

    POSITIONS = 1
    in_torch = F.conv1d


def _pads_evenly(layer: Any) -> bool:
    """Whether a layer pads with zeros, as many on the left and top as on the right and bottom."""
    if layer.padding_mode != "zeros" or layer.padding != "same":
        return bool(layer.padding_mode == "zeros")
    return all(d * (k - 1) % 2 == 0 for k, d in zip(layer.kernel_size, layer.dilation, strict=True))


def _on_plane(sizes: tuple[int, ...], one_row: int) -> Pair:
    """A setting of each direction of a plane; a line has `one_row` for the height."""
    return (one_row, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])
