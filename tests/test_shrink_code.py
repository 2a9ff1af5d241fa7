"""Shrinking by hand: code between the layers that is understood, and code that is not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from shrink_parts import IMAGE, check, kill_inputs, kill_outputs, masked
from torch import nn

from snip.export.shrink import shrink_report


class Forward(nn.Module):
    """Two convolutions with any code between them."""

    def __init__(self, between: str) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 2, 1)
        self.fc = nn.Linear(4 * 36, 3)
        self.norm = nn.LayerNorm([4, 6, 6])
        self.scale = nn.Parameter(torch.randn(4, 1, 1))
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return BETWEEN[self.between](self, self.first(x))


def _unpacked(y: torch.Tensor) -> torch.Tensor:
    b, _c, _h, _w = y.shape
    return y.view(b, -1)


BETWEEN = {
    "flatten": lambda m, y: m.fc(torch.flatten(y, 1)),
    "view": lambda m, y: m.fc(y.view(y.size(0), -1)),
    "reshape": lambda m, y: m.fc(torch.reshape(y, (y.shape[0], -1))),
    "unpacked": lambda m, y: m.fc(_unpacked(y)),
    "positions": lambda m, y: m.last(y.flatten(2).unsqueeze(-1)),
    "permuted": lambda m, y: m.last(y.permute(0, 2, 3, 1).transpose(1, -1)),
    "squeezed": lambda m, y: m.last(y.unsqueeze(1).squeeze(1)),
    "moved": lambda m, y: m.last(y.movedim(1, 3).swapaxes(3, 1)),
    "narrowed": lambda m, y: m.last(y.narrow(2, 1, 4)),
    "cast": lambda m, y: m.last(y.to(torch.float64).float()),
    "sliced": lambda m, y: m.last(y[..., 1:, None, 2]),
    "cropped": lambda m, y: m.last(y[:, :, ::2, 1:3]),
    "padded": lambda m, y: m.last(F.pad(y, (1, 2, 0, 1), mode="replicate")),
    "pooled": lambda m, y: m.last(F.adaptive_avg_pool2d(F.max_pool2d(y, 2), 1)),
    "mean": lambda m, y: m.last(torch.mean(y, dim=[2, 3], keepdim=True)),
    "amax": lambda m, y: m.last(y.amax((-1,), keepdim=True)),
    "scaled": lambda m, y: m.last(2 * y + 1 - y / 3),
    "gated": lambda m, y: m.last(y * torch.sigmoid(y.mean((2, 3), keepdim=True))),
}
BLOCKED = {
    "written size": lambda m, y: m.fc(y.view(-1, 144)),
    "number of units": lambda m, y: m.last(y) * y.size(1),
    "shape of units": lambda m, y: m.last(y) * y.shape[1],
    "whole shape": lambda m, y: m.last(torch.zeros(y.shape) + y),
    "parameter": lambda m, y: m.last(y * m.scale),
    "layer norm": lambda m, y: m.last(m.norm(y)),
    "softmax": lambda m, y: m.last(y.softmax(1)),
    "chosen": lambda m, y: m.last(torch.cat([y[:, 1:], y[:, :1]], 1)),
    "every second": lambda m, y: m.last(torch.cat([y[:, ::2], y[:, 1::2]], 1)),
    "narrowed to units": lambda m, y: m.last(torch.cat([y.narrow(1, 0, 3), y.narrow(1, 3, 1)], 1)),
    "rows of a written size": lambda m, y: m.last(y.view(-1, 4, 36).view(-1, 4, 6, 6)),
    "flipped": lambda m, y: m.last(y.flip(1)),
    "channel mean": lambda m, y: m.last(y - y.mean(1, keepdim=True)),
    "written in": lambda m, y: m.last(y.index_fill_(1, torch.tensor([0]), 3.0)),
    "functional": lambda m, y: F.conv2d(y, m.last.weight, m.last.bias),
    "twice": lambda m, y: m.last(y) + m.last(y.relu()),
    "squeezed": lambda m, y: m.last(y.squeeze()),
    "dimension by its other name": lambda m, y: m.last(torch.cat((y, y), axis=2)),
    "matmul": lambda m, y: m.last(y @ y),
}
BETWEEN |= BLOCKED


@pytest.mark.parametrize("between", [name for name in BETWEEN if name not in BLOCKED])
def test_code_that_is_understood(between: str) -> None:
    net = Forward(between)
    kill_inputs(net.first, 1)
    kill_outputs(net.last, 3)
    net.fc.weight.data[:, 3 * 36 :] = 0
    small = check(masked(net), IMAGE)
    assert small.first.out_channels == 2


@pytest.mark.parametrize("between", list(BLOCKED))
def test_code_that_is_not_understood_blocks(between: str) -> None:
    net = Forward(between)
    kill_inputs(net.first, 1)
    kill_outputs(net.last, 3)
    if between == "matmul":
        net.first.bias.data.zero_()
    small = check(masked(net), IMAGE)
    assert small.first.out_channels == 4
    assert not [k for k in shrink_report(small).layers if k.units[0] != k.units[1]]


def test_a_sum_over_positions_grows_with_the_image() -> None:
    class Summed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self[1](self[0](x).sum((2, 3), keepdim=True))

    net = Summed(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1))
    kill_inputs(net[0], 0, 1)
    net[0].bias.data[0] = 0
    small = check(masked(net), IMAGE)
    assert small[0].out_channels == 2
    wide = torch.randn(1, 2, 9, 9)
    torch.testing.assert_close(small(wide), net(wide))


def test_writes_in_place_do_not_fool_it() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            view = y.flatten(1)
            z = self.relu(view)
            z += 1
            return self.a(z) + self.b(y)  # y has been written to as well

    net = InPlace()
    kill_inputs(net.first, 0, 1)
    kill_outputs(net.b, 1)
    small = check(masked(net), torch.randn(5, 3))
    assert small.first.out_features == 3  # unit 1 is read where its value is known only


@pytest.mark.parametrize("whole", [False, True])
def test_a_size_that_was_asked_for_before_a_write_in_place(whole: bool) -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(2, 4, 1), nn.Linear(144, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            rows = y.size() if whole else y.size(0)
            y.relu_()
            return self.last(y.view(rows[0] if whole else rows, -1))

    net = Sized()
    net.last.weight.data[:, :36] = 0
    assert check(masked(net), IMAGE).first.out_channels == 3


def test_a_pattern_that_is_resized_depends_on_the_size_of_the_image() -> None:
    class Resized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pattern = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 3, padding=1)
            self.last = nn.Linear(72, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.pattern(self.first(x))
            return self.last(F.interpolate(y, (6, 6)).flatten(1))

    net = Resized()
    kill_inputs(net.first, 0)
    net.first.bias.data[0] = 1
    net.pattern.weight.data[1, 1:] = 0  # reads only the constant: a pattern with a border
    small = check(masked(net), IMAGE)
    wide = torch.randn(2, 2, 9, 9)
    torch.testing.assert_close(small(wide), net(wide))
