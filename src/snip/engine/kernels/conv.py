"""Sparse convolution on activations [ceil(batch / lanes), C, H, W, lanes]; 1 lane is plain NCHW."""

import math
from ctypes import byref
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from snip.common.errors import InputError
from snip.engine.kernels.conversions import LANES, check_lanes
from snip.engine.kernels.index import check_mask
from snip.engine.kernels.library import kernel, vector_floats
from snip.engine.kernels.memory import empty, pointer
from snip.engine.kernels.plan import ConvPlan, Taps
from snip.engine.kernels.tiling import FORWARD, WEIGHTS

Pair = tuple[int, int]
MOST_PIXELS = 1 << 20  # of a stride, a padding or a dilation: more is a mistake


@dataclass(frozen=True, eq=False)
class ConvIndex:
    """A mask [O, C / groups, kh, kw] on inputs of one size, ready for the kernels."""

    mask: torch.Tensor = field(repr=False)
    in_shape: tuple[int, int, int]  # channels, height, width
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    lanes: int = LANES

    def __post_init__(self) -> None:
        check_mask(self.mask, 4)
        out, per_group = self.mask.shape[:2]
        if per_group * self.groups != self.in_shape[0] or out % self.groups:
            raise InputError(
                f"a mask {tuple(self.mask.shape)} in {self.groups} groups does not fit "
                f"{self.in_shape[0]} input channels"
            )
        check_lanes(self.lanes)
        steps, pads = (*self.stride, *self.dilation), self.padding
        if not all(isinstance(n, int) and 0 <= n <= MOST_PIXELS for n in (*steps, *pads)):
            raise InputError(f"stride, padding and dilation {(*steps, *pads)} are no such numbers")
        if min(steps) < 1:
            raise InputError(f"stride {self.stride} and dilation {self.dilation} are 1 at least")
        if min(self.out_shape) < 1:
            raise InputError(f"the kernel is larger than its padded input {self.in_shape}")

    @property
    def kept(self) -> int:
        """Number of surviving weights."""
        return len(self._weights[0])

    @cached_property
    def out_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the output."""
        height, width = (
            (size + 2 * pad - dil * (k - 1) - 1) // step + 1
            for size, pad, dil, k, step in zip(
                self.in_shape[1:],
                self.padding,
                self.dilation,
                self.mask.shape[2:],
                self.stride,
                strict=True,
            )
        )
        return self.mask.shape[0], height, width

    @cached_property
    def _weights(self) -> tuple[np.ndarray, ...]:
        """Output channel, input channel, and the input row and column relative to the output's."""
        out, channel, ky, kx = np.unravel_index(
            np.flatnonzero(self.mask.numpy()), tuple(self.mask.shape)
        )
        channel = channel + out // (self.mask.shape[0] // self.groups) * self.mask.shape[1]
        row = ky * self.dilation[0] - self.padding[0]
        return out, channel, row, kx * self.dilation[1] - self.padding[1]

    @cached_property
    def forward_plan(self) -> ConvPlan:
        """Outputs from inputs."""
        return ConvPlan(self._forward_taps, vector_floats(), FORWARD)

    @cached_property
    def weights_plan(self) -> ConvPlan:
        """Gradient of the weights: the same taps in larger tiles."""
        return ConvPlan(self._forward_taps, vector_floats(), WEIGHTS)

    @cached_property
    def _forward_taps(self) -> Taps:
        out_step, grid = (1, 1), self.out_shape[1:]
        shapes = (self.lanes, self.in_shape, self.out_shape, self.stride, out_step, grid)
        return Taps(*shapes, *self._weights)

    @cached_property
    def backward_plan(self) -> ConvPlan:
        """Gradient of inputs from that of outputs: a product of unit stride per phase."""
        out, channel, row, col = self._weights
        (phase_y, phase_x) = row % self.stride[0], col % self.stride[1]
        grid = tuple(
            -(-size // step) for size, step in zip(self.in_shape[1:], self.stride, strict=True)
        )
        taps = Taps(
            self.lanes,
            self.out_shape,
            self.in_shape,
            (1, 1),
            self.stride,
            (grid[0], grid[1]),
            (channel * self.stride[0] + phase_y) * self.stride[1] + phase_x,
            out,
            (phase_y - row) // self.stride[0],
            (phase_x - col) // self.stride[1],
        )
        return ConvPlan(taps, vector_floats(), FORWARD)

    def __deepcopy__(self, memo: Any) -> "ConvIndex":
        return self


def conv_forward(
    index: ConvIndex,
    values: torch.Tensor,
    x: torch.Tensor,
    batch: int,
    *,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """y = convolution (* scale) (+ bias) (then ReLU); `batch` of the blocks' lanes are real."""
    plan = index.forward_plan
    return run_product(plan, values, x, batch, scale=scale, bias=bias, relu=relu, out=out)


def conv_backward_input(
    index: ConvIndex,
    values: torch.Tensor,
    dy: torch.Tensor,
    batch: int,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient with respect to the input of the convolution."""
    return run_product(index.backward_plan, values, dy, batch, out=out)


def conv_backward_weights(
    index: ConvIndex,
    x: torch.Tensor,
    dy: torch.Tensor,
    batch: int,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient of the surviving weights [kept]; lanes beyond the batch never count."""
    return run_weights(index.weights_plan, x, dy, batch, out=out)


def run_product(
    plan: ConvPlan,
    values: torch.Tensor,
    x: torch.Tensor,
    batch: int,
    *,
    scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of one plan, to the outputs or back to the inputs."""
    taps = plan.taps
    blocks, channels = math.ceil(batch / taps.lanes), taps.out_shape[0]
    if out is None:
        out = empty(blocks, *taps.out_shape, taps.lanes)
    kernel("conv_forward")(
        *(byref(plan.struct), pointer(values, (plan.kept,), "values")),
        pointer(x, (blocks, *taps.in_shape, taps.lanes), "the tensor read"),
        *(pointer(scale, (channels,), "scale"), pointer(bias, (channels,), "bias")),
        pointer(out, (blocks, *taps.out_shape, taps.lanes), "out"),
        *(batch, int(relu), torch.get_num_threads()),
    )
    return out


def run_weights(
    plan: ConvPlan,
    x: torch.Tensor,
    dy: torch.Tensor,
    batch: int,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Gradient of the weights by one plan."""
    taps, out = plan.taps, empty(plan.kept) if out is None else out
    blocks = math.ceil(batch / taps.lanes)
    kernel("conv_weights")(
        byref(plan.struct),
        pointer(x, (blocks, *taps.in_shape, taps.lanes), "x"),
        pointer(dy, (blocks, *taps.out_shape, taps.lanes), "dy"),
        *(pointer(out, (plan.kept,), "out"), batch, torch.get_num_threads()),
    )
    return out
