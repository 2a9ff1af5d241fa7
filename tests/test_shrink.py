"""Shrinking by hand: what goes, what is folded, what stays and why."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snip
from snip.export.shrink import ShrinkReport, shrink, shrink_report
from snip.export.shrink.shrinking import shrunk
from snip.masks import Masks, held_masks

IMAGE = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def kill_inputs(layer: nn.Module, *units: int) -> None:
    """Units that no input reaches; the bias stays."""
    layer.weight.data[list(units)] = 0


def kill_outputs(layer: nn.Module, *units: int) -> None:
    """Units that this layer does not read."""
    layer.weight.data[:, list(units)] = 0


def masked(model: nn.Module) -> nn.Module:
    """Hold the zeros of all weights (not biases) as masks."""
    Masks({n: p != 0 for n, p in model.named_parameters() if p.ndim > 1}).apply(model)
    return model


def check(model: nn.Module, batch: torch.Tensor, *, fold: bool = True) -> nn.Module:
    """Shrink, and compare outputs in eval mode."""
    small = shrink(model, batch, fold=fold)
    model, small_eval = copy.deepcopy(model).eval(), copy.deepcopy(small).eval()
    with torch.no_grad():
        torch.testing.assert_close(small_eval(batch), model(batch), rtol=1e-4, atol=1e-5)
    return small


def kept(model: nn.Module, name: str) -> list[tuple[str, int]]:
    report = shrink_report(model)
    return list(next(layer for layer in report.layers if layer.name == name).kept_constants)


def test_unread_units_and_constants_go() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].bias.data = torch.tensor([1.0, 2.0, -3.0, 4.0])
    kill_inputs(net[0], 1, 2)
    kill_outputs(net[2], 3)
    small = check(masked(net), torch.randn(5, 3))
    assert small[0].weight.shape == (1, 3)
    assert small[0].out_features == 1
    assert small[2].in_features == 1
    # relu(2) = 2 of unit 1 is folded, relu(-3) = 0 of unit 2 adds nothing.
    expected = net[2].bias + 2 * net[2].weight[:, 1]
    torch.testing.assert_close(small[2].bias, expected)


def test_one_empty_layer_keeps_one_unit() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    net[2].weight.data.zero_()
    small = check(masked(net), torch.randn(5, 3))
    assert [small[i].out_features for i in (0, 2, 4)] == [1, 1, 2]


def test_a_masked_bias_that_takes_a_constant_is_a_connection_again() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    kill_inputs(net[0], 0)
    net[1].bias.data.zero_()
    Masks({n: p != 0 for n, p in net.named_parameters()}).apply(net)
    small = check(net, torch.randn(4, 3))
    masks = held_masks(small)
    assert masks is not None
    assert masks["1.bias"].all()
    masks.check(small)


@pytest.mark.parametrize(
    ("options", "goes"),
    [
        ({}, True),
        ({"padding": 1}, False),
        ({"padding": "same"}, False),
        ({"padding": "valid"}, True),
        ({"padding": 1, "padding_mode": "reflect"}, True),
        ({"padding": 1, "padding_mode": "circular", "stride": 2, "dilation": 2}, True),
    ],
)
def test_zero_padding_makes_a_constant_differ_at_the_border(options: dict, goes: bool) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 3, **options), nn.Conv2d(4, 2, 1))
    kill_inputs(net[0], 1)
    small = check(masked(net), IMAGE)
    assert small[0].out_channels == (2 if goes else 3)
    if not goes:
        [(reason, count)] = kept(small, "0")
        assert (count, "'1'" in reason, "border" in reason) == (1, True, True)
    net[0].bias.data[1] = 0  # a zero constant is the same everywhere
    assert check(net, IMAGE)[0].out_channels == 2


def test_a_new_bias_where_there_was_none() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Conv2d(3, 4, 3, bias=False), nn.Flatten())
    kill_inputs(net[0], 1)
    small = check(masked(net), IMAGE)
    assert small[1].bias.shape == (4,)
    assert "1.bias" in dict(held_masks(small))  # the masks know it
    assert shrink_report(small).folded == 4
    assert not shrink_report(small).trains_alike


def test_patterns_of_constants_are_folded_by_a_linear_layer() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 3, 1), nn.Conv2d(3, 3, 3, padding=1), nn.Flatten(), nn.Linear(108, 4)
    )
    kill_inputs(net[0], 0)
    net[1].weight.data[1, 1:] = 0  # reads only the constant: a pattern with a border
    small = check(masked(net), IMAGE)
    assert small[1].out_channels == 2
    assert small[3].in_features == 72


@pytest.mark.parametrize(
    ("pool", "goes"),
    [
        (nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), True),
        (nn.AvgPool2d(3, 2, padding=1), False),
        (nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), True),
        (nn.AvgPool2d(2), True),
        (nn.AvgPool2d(2, divisor_override=3), False),
        (nn.AdaptiveAvgPool2d(3), True),
        (nn.AdaptiveMaxPool2d(3), True),
        (nn.ZeroPad2d(1), False),
        (nn.ConstantPad2d(1, 5.0), False),
        (nn.ReplicationPad2d(1), True),
        (nn.Upsample(scale_factor=2), True),
        (nn.Dropout(0.5), True),
        (nn.GELU(), True),
        (nn.PReLU(), False),
        (nn.PReLU(3), False),
        (nn.InstanceNorm2d(3), False),
        (nn.GroupNorm(3, 3), False),
        (nn.Softmax2d(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_carries_a_constant(pool: nn.Module, goes: bool) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), pool, nn.Conv2d(3, 4, 1))
    kill_inputs(net[0], 1)
    net[0].bias.data = torch.tensor([0.5, -0.6, 0.7])
    small = check(masked(net), IMAGE)
    assert small[0].out_channels == (2 if goes else 3)


def test_batch_norm_turns_a_constant_into_another() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1))
    net[1].running_mean.copy_(torch.randn(3))
    net[1].bias.data = torch.randn(3) + 2
    kill_inputs(net[0], 0, 2)
    small = check(masked(net), IMAGE)
    assert small[1].num_features == 1
    assert small[1].running_var.shape == (1,)


def test_zero_initialised_norms_do_not_kill() -> None:
    """The usual trick of residual networks: gamma starts at zero and grows."""
    net = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1))
    nn.init.zeros_(net[1].weight)
    assert shrink_report(check(masked(net), IMAGE)).removed == 0


class Residual(nn.Module):
    """Two blocks on one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 1)
        self.inner1, self.outer1 = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.inner2, self.outer2 = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(4, 2)
        for layer in (self.stem, self.outer1, self.outer2):
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.outer1(F.relu(self.inner1(x)))
        x = x + self.outer2(F.relu(self.inner2(x)))
        return self.head(x.mean((2, 3)))


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
    for fold in (True, False):
        small = check(net, IMAGE, fold=fold)
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
@pytest.mark.parametrize("fold", [True, False])
def test_hidden_units_that_stay_at_zero(kind: type[nn.RNNBase], gate: int, fold: bool) -> None:
    net = Sequence(kind)
    for unit, row in ((2, gate * 5 + 2), (3, gate * 5 + 3)):
        net.rnn.weight_ih_l0.data[row] = net.rnn.weight_hh_l0.data[row] = 0
        net.rnn.bias_ih_l0.data[row] = net.rnn.bias_hh_l0.data[row] = 0
        net.rnn.weight_hh_l0.data[gate * 5 + 3, 2] = 1  # unit 3 reads unit 2, which is zero
        assert unit in (2, 3)
    Masks({n: p != 0 for n, p in net.named_parameters()}).apply(net)
    small = check(net, torch.randn(2, 7, 3), fold=fold)
    assert small.rnn.hidden_size == 3
    net.rnn.bias_ih_l0.data[gate * 5 + 2] = 1
    snip.release(net)
    masked(net)
    assert check(net, torch.randn(2, 7, 3), fold=fold).rnn.hidden_size == 5


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


def test_fold_false_keeps_what_would_train() -> None:
    def net(activation: nn.Module) -> nn.Module:
        result = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 2))
        kill_inputs(result[0], 1)
        nn.init.zeros_(result[0].bias)
        return masked(result)

    x = torch.randn(5, 3)
    # The gradient of ReLU at 0 is 0: the unit never wakes. That of tanh is 1: it does.
    assert check(net(nn.ReLU()), x, fold=False)[0].out_features == 3
    kept_small = check(net(nn.Tanh()), x, fold=False)
    assert kept_small[0].out_features == 4
    assert kept(kept_small, "0") == [("read by '2', where training would change it", 1)]
    folded = check(net(nn.Tanh()), x)
    assert folded[0].out_features == 3
    assert not shrink_report(folded).trains_alike
    assert shrink_report(check(net(nn.ReLU()), x)).trains_alike


def test_zeros_without_a_mask_may_grow_again() -> None:
    net = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2))
    kill_outputs(net[1], 0)
    x = torch.randn(5, 3)
    assert check(net, x)[0].out_features == 3
    assert not shrink_report(check(net, x)).trains_alike
    assert check(net, x, fold=False)[0].out_features == 4
    net.requires_grad_(False)
    assert check(net, x, fold=False)[0].out_features == 3


def test_dropout_is_noted() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2))
    assert shrink_report(check(masked(net), torch.randn(5, 3))).notes == ()
    kill_outputs(net[3], 1)
    report = shrink_report(check(masked(net), torch.randn(5, 3)))
    assert "Dropout" in report.notes[0]


def test_other_work_in_train_mode_is_noted() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.aux = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return self.last(x) + self.aux(x) if self.training else self.last(x)

    report = shrink_report(check(masked(Auxiliary()), torch.randn(5, 3)))
    assert "eval mode" in report.notes[0]
    assert not report.trains_alike


def test_masks_are_cut_and_held() -> None:
    net = Residual()
    x, targets = torch.randn(4, 2, 6, 6), torch.tensor([0, 1, 1, 0])
    snip.prune(net, (x, targets), sparsity=0.7)
    small = check(net, (x)).train()
    masks = held_masks(small)
    assert masks is not None
    assert masks.provenance.shrunk_from["total"] > masks.total
    optimizer = torch.optim.AdamW(small.parameters(), lr=0.1, weight_decay=0.1)
    F.cross_entropy(small(x), targets).backward()
    optimizer.step()
    masks.check(small)


def test_the_model_is_left_alone() -> None:
    net = masked(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)))
    kill_outputs(net[3], 1)
    net[1].eval()
    state = copy.deepcopy(net.state_dict())
    x = torch.randn(5, 3)
    generator = torch.get_rng_state()
    small = shrink(net, x)
    assert torch.equal(generator, torch.get_rng_state())
    assert net.training
    assert not net[1].training
    assert [m.training for m in small] == [True, False, True, True]
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in state.items())
    assert list(small.state_dict()) == list(state)
    assert held_masks(net) is not None


def test_copies_of_the_small_model() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kill_outputs(net[1], 1)
    small = check(masked(net), torch.randn(5, 3))
    for twin in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert shrink_report(twin) == shrink_report(small)
        assert held_masks(twin) == held_masks(small)


def test_shrinking_twice_remembers_the_original() -> None:
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    kill_outputs(net[2], 1)
    once = check(masked(net), torch.randn(5, 3))
    snip.release(once)
    kill_outputs(once[2], 2)  # unit 3 of the original
    twice = check(masked(once), torch.randn(5, 3))
    plan = shrunk(twice).plan
    assert plan["0"].outputs == plan["2"].inputs == (0, 2, 4)
    assert plan["0"].inputs is None


def test_batches_of_any_kind() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(
            self, x: torch.Tensor, mask: torch.Tensor | None = None, *, double: bool = False
        ) -> dict[str, torch.Tensor]:
            y = self.first(x)
            if mask is not None:
                y = y * mask
            return {"logits": self.last(y * 2 if double else y)}

    net = Two()
    kill_outputs(net.last, 1)
    masked(net)
    x = torch.randn(5, 3)
    for batch in (x, (x, torch.randn(5, 1)), {"x": x, "double": True}, {"mask": None, "x": x}):
        assert shrink(net, batch).first.out_features == 3
    with torch.inference_mode():
        assert shrink(net, x.clone()).first.out_features == 3


def test_shared_tied_and_hooked_layers_stay() -> None:
    def net() -> nn.Sequential:
        made = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
        kill_outputs(made[2], 1)
        return made

    x = torch.randn(5, 4)
    tied = net()
    tied[0].weight = tied[2].weight
    assert shrink_report(check(tied, x)).removed == 0
    hooked = net()
    hooked[2].register_forward_hook(lambda module, args, out: out + args[0].sum())
    assert shrink_report(check(hooked, x)).removed == 0
    twice = nn.BatchNorm1d(4, affine=False)
    normed_twice = nn.Sequential(nn.Linear(4, 4), twice, nn.Linear(4, 4), twice, nn.Linear(4, 2))
    kill_outputs(normed_twice[2], 1)
    assert shrink_report(check(normed_twice, x)).removed == 0
    normed = net()
    nn.utils.parametrizations.weight_norm(normed[2])
    assert check(normed, x)[0].out_features == 4


@pytest.mark.parametrize("kind", ["branch", "sizes", "other"])
def test_refusals_say_why(kind: str) -> None:
    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if kind == "branch" and x.sum() > 0:
                return x
            y = self.first(x)
            if kind == "sizes":
                y = y.expand(5, 4)
            # Surgery changes the number, and tracing took the old one for a constant.
            return self.last(y * (self.first.out_features if kind == "other" else 1))

    net = Bad()
    kill_outputs(net.last, 1)
    if kind == "sizes":
        assert shrink(net, torch.randn(5, 3)).first.out_features == 4
        return
    words = "cannot follow" if kind == "branch" else "outputs differ"
    with pytest.raises(snip.InputError, match=words):
        shrink(net, torch.randn(5, 3))
    with pytest.raises(snip.InputError, match=r"does not run|cannot follow"):
        shrink(net, torch.randn(5, 7))


def test_report() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kill_outputs(net[1], 1)
    report = shrink_report(check(masked(net), torch.randn(5, 3)))
    assert isinstance(report, ShrinkReport)
    assert report.removed == 1
    assert report.parameters == (26, 20)
    assert "4 -> 3" in str(report)
    with pytest.raises(snip.InputError, match=r"snip\.shrink"):
        shrink_report(net)


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
