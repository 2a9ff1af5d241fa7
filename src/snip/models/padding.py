"""TensorFlow's `SAME` padding, which the authors' AlexNet and VGG use."""

from __future__ import annotations

from torch import nn


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """(low, high) padding of one dimension so that ceil(size / stride) outputs come out."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def same_conv(
    inputs: int, outputs: int, kernel: int, *, stride: int, size: int
) -> list[tuple[str, nn.Module]]:
    """A `SAME` convolution of a size x size map, as (role, module) in order."""
    low, high = same_padding(size, kernel, stride)
    if low == high:
        return [("conv", nn.Conv2d(inputs, outputs, kernel, stride, padding=low))]
    # Stride 2 on an even map pads one more at the right and bottom than at the left and top, which
    # torch's convolutions cannot express: padding=k//2 would see the image shifted by a pixel.
    return [
        ("pad", nn.ZeroPad2d((low, high, low, high))),
        ("conv", nn.Conv2d(inputs, outputs, kernel, stride)),
    ]
