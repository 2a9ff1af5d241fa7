"""Max and mean pooling on blocks [N/lanes, C, H, W, lanes]."""

import math
from ctypes import byref
from dataclasses import dataclass

import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import MOST_POSITIONS
from snip.engine.kernels.conversions import (
    LANES,
    check_blocks,
    check_lanes,
    columns,
    columns_to_blocks,
    empty_columns,
)
from snip.engine.kernels.library import kernel
from snip.engine.kernels.memory import empty, pointer
from snip.engine.kernels.structs import WindowStruct

Pair = tuple[int, int]


@dataclass(frozen=True)
class Window:
    """A pooling window on planes of one size."""

    in_size: Pair
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        if math.prod(self.kernel) > MOST_POSITIONS:
            raise InputError(
                f"a pooling window {self.kernel} has more than {MOST_POSITIONS} positions"
            )
        if min(*self.kernel, *self.stride, *self.dilation) < 1 or min(self.padding) < 0:
            raise InputError(
                f"a pooling window {self.kernel} needs positive strides and dilations, not "
                f"{self.stride} and {self.dilation}, and padding of at least 0, not {self.padding}"
            )
        if any(2 * pad > size for pad, size in zip(self.padding, self.kernel, strict=True)):
            raise InputError(f"padding {self.padding} is more than half the window {self.kernel}")
        if min(self.out_size) < 1:
            raise InputError(f"a pooling window {self.kernel} is larger than {self.in_size}")

    @property
    def out_size(self) -> Pair:
        """Height and width of the output, as torch computes them."""
        one, two = (self._outputs(axis) for axis in (0, 1))
        return one, two

    def _outputs(self, axis: int) -> int:
        size, pad, step = self.in_size[axis], self.padding[axis], self.stride[axis]
        free = size + 2 * pad - self.dilation[axis] * (self.kernel[axis] - 1) - 1
        if not self.ceil_mode:
            return free // step + 1
        count = -(-free // step) + 1
        # The last window must begin inside the input or its left padding.
        return count - 1 if (count - 1) * step >= size + pad else count

    def struct(self) -> WindowStruct:
        """The native struct."""
        sizes = (self.in_size, self.out_size, self.kernel, self.stride, self.padding, self.dilation)
        names = ("in", "out", "kernel", "stride", "pad", "dilation")
        heights = {f"{name}_h": size[0] for name, size in zip(names, sizes, strict=True)}
        widths = {f"{name}_w": size[1] for name, size in zip(names, sizes, strict=True)}
        return WindowStruct(**heights, **widths)


def max_pool(x: torch.Tensor, batch: int, window: Window) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest of each window, and its number within the window (uint8)."""
    lanes = check_blocks(x, batch, "x")
    if x.dim() != 5 or tuple(x.shape[2:4]) != window.in_size:
        raise InputError(f"x is {tuple(x.shape)}, but the window is for planes {window.in_size}")
    y = empty(*x.shape[:2], *window.out_size, lanes)
    which = torch.empty(y.shape, dtype=torch.uint8, device="cpu")
    kernel("max_pool")(
        *(pointer(x, x.shape, "x"), pointer(y, y.shape, "y"), _places(which, y.shape)),
        byref(window.struct()),
        *(x.shape[0] * x.shape[1], lanes, torch.get_num_threads()),
    )
    return y, which


def max_pool_backward(dy: torch.Tensor, which: torch.Tensor, window: Window) -> torch.Tensor:
    """Gradient of max_pool's input."""
    if dy.dim() != 5 or tuple(dy.shape[2:4]) != window.out_size:
        raise InputError(f"dy {tuple(dy.shape)} is not the gradient of max_pool's output")
    check_lanes(dy.shape[4])
    dx = empty(*dy.shape[:2], *window.in_size, dy.shape[4])
    kernel("max_pool_backward")(
        *(pointer(dy, dy.shape, "dy"), _places(which, dy.shape), pointer(dx, dx.shape, "dx")),
        byref(window.struct()),
        *(dy.shape[0] * dy.shape[1], dy.shape[4], torch.get_num_threads()),
    )
    return dx


def mean_pool(x: torch.Tensor, batch: int) -> torch.Tensor:
    """Mean over each whole plane, columns [C, batch]."""
    lanes = check_blocks(x, batch, "x")
    channels, positions = x.shape[1], math.prod(x.shape[2:-1])
    y = empty_columns(channels, batch)
    kernel("mean_pool")(
        *(pointer(x, x.shape, "x"), *columns(y, channels, batch, "y")),
        *(channels, positions, lanes, batch, torch.get_num_threads()),
    )
    return y


def mean_pool_backward(dy: torch.Tensor, size: Pair, *, lanes: int = LANES) -> torch.Tensor:
    """Gradient of mean_pool's input, [blocks, C, *size, lanes], zero beyond the batch."""
    channels = dy.shape[0]
    blocks = columns_to_blocks(dy / math.prod(size), (channels, 1, 1), lanes=lanes)
    return blocks.expand(-1, -1, *size, -1).contiguous()


def _places(which: torch.Tensor, shape: tuple[int, ...]) -> int | None:
    """Address of the numbers within the windows."""
    return pointer(which, shape, "which", dtype=torch.uint8)
