"""Dense 3 x 3 convolution of stride 1 on blocks, by Winograd: for layers that are hardly sparse."""

import math
from ctypes import byref
from dataclasses import dataclass

import torch

from snip.common.errors import InputError
from snip.engine.kernels.conversions import LANES, check_blocks
from snip.engine.kernels.library import kernel
from snip.engine.kernels.memory import empty, pointer
from snip.engine.kernels.structs import WinogradStruct

Pair = tuple[int, int]


@dataclass(frozen=True)
class WinogradShape:
    """Channels and sizes of one product; `padding` is that of the input."""

    channels: int
    outs: int
    in_size: Pair
    padding: Pair

    @property
    def out_size(self) -> Pair:
        """Height and width of the output."""
        one, two = (
            size + 2 * pad - 2 for size, pad in zip(self.in_size, self.padding, strict=True)
        )
        return one, two

    def struct(self, lanes: int, batch: int) -> WinogradStruct:
        """The native struct."""
        sizes = (*self.in_size, *self.out_size, *self.padding)
        names = ("in_h", "in_w", "out_h", "out_w", "pad_h", "pad_w")
        counts = {"channels": self.channels, "outs": self.outs, "lanes": lanes, "batch": batch}
        return WinogradStruct(**counts, **dict(zip(names, sizes, strict=True)))

    def backward(self) -> "WinogradShape":
        """The product from the gradient of the outputs to that of the inputs."""
        one, two = (2 - pad for pad in self.padding)
        return WinogradShape(self.outs, self.channels, self.out_size, (one, two))


def winograd_forward(
    shape: WinogradShape,
    weights: torch.Tensor,
    x: torch.Tensor,
    batch: int,
    *,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    back: bool = False,
) -> torch.Tensor:
    """y = convolution (* scale) (+ bias) (then ReLU), of dense `weights` [O, C, 3, 3].

    With `back`, `shape` is a `backward()` one and y the gradient of the layer's input.
    """
    lanes = check_blocks(x, batch, "x")
    wanted = (shape.channels, *shape.in_size, LANES)
    size = shape.outs * shape.channels * 9
    if tuple(x.shape[1:]) != wanted or weights.numel() != size or not weights.is_contiguous():
        raise InputError(f"x is {tuple(x.shape)}, weights {tuple(weights.shape)}: not of {shape}")
    threads = torch.get_num_threads()
    u = empty(16 * shape.outs * shape.channels)
    kernel("winograd_weights")(
        pointer(weights, weights.shape, "weights"),
        *(pointer(u, u.shape, "u"), shape.outs, shape.channels, int(back), threads),
    )
    y = empty(math.ceil(batch / lanes), shape.outs, *shape.out_size, lanes)
    kernel("winograd_forward")(
        *(byref(shape.struct(lanes, batch)), pointer(u, u.shape, "u"), pointer(x, x.shape, "x")),
        *(pointer(scale, (shape.outs,), "scale"), pointer(bias, (shape.outs,), "bias")),
        *(pointer(y, y.shape, "y"), int(relu), threads),
    )
    return y
