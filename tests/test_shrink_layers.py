"""Shrinking by hand: residuals, groups, concatenations and recurrent layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from shrink_parts import IMAGE, Residual, check, kept, kill_inputs, kill_outputs, masked
from torch import nn

import snip
from snip.export.shrink import shrink, shrink_report
from snip.masks import Masks


def test_residual_channels_go_only_together() -> None:
    net = Residual()
    kill_inputs(net.stem, 0, 1)
    kill_inputs(net.outer1, 0)
    kill_inputs(net.outer2, 0)
    small = check(masked(net), IMAGE)
    for layer in (small.stem, small.outer1, small.outer2):
        assert layer.out_channels == 3  # channel 1 gets something in both blocks
    assert small.head.in_features == 3
    assert kept(small, "stem") == [("a live unit is added to it", 1)]


def test_a_circle_that_reaches_no_output_goes() -> None:
    net = Residual()
    kill_outputs(net.head, 2)
    for inner in (net.inner1, net.inner2):
        inner.weight.data[:2, 2] = 0  # channel 2 of the stream is read by inner unit 2 ...
    for outer in (net.outer1, net.outer2):
        outer.weight.data[:2, 2] = outer.weight.data[3:, 2] = 0  # ... which writes only there
    small = check(masked(net), IMAGE)
    assert small.stem.out_channels == 3
    assert small.inner1.out_channels == small.inner2.out_channels == 2


class BasicBlock(nn.Module):
    """As the usual libraries write it, with writes in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def test_residual_blocks_with_writes_in_place() -> None:
    stem = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    net = nn.Sequential(stem, BasicBlock(), BasicBlock(), head)
    stem[0].bias.data[1] = -1
    kill_inputs(stem[0], 1)
    for block in (net[1], net[2]):
        kill_inputs(block.conv1, 0)
        kill_inputs(block.conv2, 1)
    masked(net)
    small = check(net, IMAGE)
    # Their constants are relu(-1) = 0 and relu(0) = 0: nothing needs folding.
    assert small[0][0].out_channels == small[2].conv2.out_channels == 3
    assert small[1].conv1.out_channels == small[3][2].in_features == 3
    assert not shrink_report(small).folded


class Grouped(nn.Module):
    def __init__(self, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 1)
        self.grouped = nn.Conv2d(4, 8, 3, groups=groups, padding=1, bias=False)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.grouped(self.first(x))))


@pytest.mark.parametrize(("groups", "left"), [(2, 1), (4, 2)])
def test_groups_go_or_stay_as_a_whole(groups: int, left: int) -> None:
    net = Grouped(groups)
    kill_outputs(net.last, 0, 1, 2, 3, 4)  # unit 4 shares a group with 5
    small = check(masked(net), IMAGE)
    assert small.grouped.groups == left
    assert (small.grouped.in_channels, small.grouped.out_channels) == (2, 4)
    assert small.first.out_channels == 2


class Joined(nn.Module):
    """Concatenation of a cut part, another, and the network's own input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.cat((self.a(x), x, self.b(x)), dim=1))


def test_concatenation() -> None:
    net = Joined()
    kill_inputs(net.a, 1)
    kill_outputs(net.last, 0, 3, 7)
    small = check(masked(net), IMAGE)
    assert (small.a.out_channels, small.b.out_channels, small.last.in_channels) == (1, 2, 5)


class Sequence(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.rnn = kind(4, 5, batch_first=True, **options)
        self.fc = nn.Linear(5 * (2 if self.rnn.bidirectional else 1), 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(self.embed(x))[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_hidden_units_that_nobody_reads(kind: type[nn.RNNBase]) -> None:
    net = Sequence(kind)
    kill_outputs(net.fc, 0, 1)
    net.rnn.weight_hh_l0.data[:, 0] = 0
    net.rnn.weight_hh_l0.data[:, 1] = 0
    net.rnn.weight_hh_l0.data[1::5, 1] = 1  # unit 1 is read by itself only
    kill_inputs(net.embed, 2)  # a constant, folded into the recurrent layer's bias
    net.rnn.weight_ih_l0.data[:, 3] = 0
    small = check(masked(net), torch.randn(2, 7, 3))
    assert (small.rnn.hidden_size, small.rnn.input_size, small.fc.in_features) == (3, 2, 3)
    assert small.rnn.weight_hh_l0.shape == (small.rnn.weight_ih_l0.shape[0], 3)
    F.cross_entropy(small(torch.randn(2, 7, 3)), torch.tensor([0, 1])).backward()


@pytest.mark.parametrize(("kind", "gate"), [(nn.LSTM, 2), (nn.GRU, 2), (nn.RNN, 0)])
def test_hidden_units_that_stay_at_zero(kind: type[nn.RNNBase], gate: int) -> None:
    net = Sequence(kind)
    for unit, row in ((2, gate * 5 + 2), (3, gate * 5 + 3)):
        net.rnn.weight_ih_l0.data[row] = net.rnn.weight_hh_l0.data[row] = 0
        net.rnn.bias_ih_l0.data[row] = net.rnn.bias_hh_l0.data[row] = 0
        net.rnn.weight_hh_l0.data[gate * 5 + 3, 2] = 1  # unit 3 reads unit 2, which is zero
        assert unit in (2, 3)
    Masks({n: p != 0 for n, p in net.named_parameters()}).apply(net)
    small = check(net, torch.randn(2, 7, 3))
    assert small.rnn.hidden_size == 3
    net.rnn.bias_ih_l0.data[gate * 5 + 2] = 1
    snip.release(net)
    masked(net)
    assert check(net, torch.randn(2, 7, 3)).rnn.hidden_size == 5


@pytest.mark.parametrize("options", [{"num_layers": 2}, {"bidirectional": True}, {"bias": False}])
def test_other_recurrent_layers(options: dict) -> None:
    net = Sequence(nn.LSTM, **options)
    kill_outputs(net.fc, 0)
    net.rnn.weight_hh_l0.data[:, 0] = 0
    kill_inputs(net.embed, 2)
    small = check(masked(net), torch.randn(2, 7, 3))
    alone = "bias" in options
    assert small.rnn.hidden_size == (4 if alone else 5)
    assert small.embed.out_features == 4  # without a bias the constant cannot go


def test_a_given_first_state_blocks() -> None:
    class Given(Sequence):
        def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
            return self.fc(self.rnn(self.embed(x), h)[1][0])

    net = Given(nn.GRU)
    kill_outputs(net.fc, 0)
    net.rnn.weight_hh_l0.data[:, 0] = 0
    small = shrink(masked(net), (torch.randn(2, 7, 3), torch.randn(1, 2, 5)))
    assert small.rnn.hidden_size == 5
