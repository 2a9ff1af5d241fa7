"""Shrinking by hand: layers, and the code between them."""

import pytest
import torch
import torch.nn.functional as F
from shrink_parts import IMAGE, Net, check, kept, kill_inputs, kill_outputs, masked, residual
from torch import nn

import snip
from snip.masks import Masks


def test_residual_channels_go_only_together():
    net = residual()
    kill_inputs(net.stem, 0, 1)
    kill_inputs(net.outer1, 0)
    kill_inputs(net.outer2, 0)
    small = check(masked(net), IMAGE)
    for layer in (small.stem, small.outer1, small.outer2):
        assert layer.out_channels == 3  # channel 1 gets something in both blocks
    assert small.head.in_features == 3
    assert kept(small, "stem") == [("a live unit is added to it", 1)]


def test_a_circle_that_reaches_no_output_goes():
    net = residual()
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

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def test_residual_blocks_with_writes_in_place():
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
    assert not snip.shrink_report(small).folded


@pytest.mark.parametrize(("groups", "left"), [(2, 1), (4, 2)])
def test_groups_go_or_stay_as_a_whole(groups, left):
    net = nn.Sequential()
    net.first, net.grouped = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 8, 3, 1, 1, groups=groups, bias=False)
    net.relu, net.last = nn.ReLU(), nn.Conv2d(8, 2, 1)
    kill_outputs(net.last, 0, 1, 2, 3, 4)  # unit 4 shares a group with 5
    small = check(masked(net), IMAGE)
    assert small.grouped.groups == left
    assert (small.grouped.in_channels, small.grouped.out_channels) == (2, 4)
    assert small.first.out_channels == 2


def test_concatenation():
    a, b = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1)
    # A part that is cut, the network's own input, and another part that is cut.
    net = Net(lambda m, x: m.last(torch.cat((m.a(x), x, m.b(x)), dim=1)), a=a, b=b)
    net.last = nn.Conv2d(8, 2, 1)
    kill_inputs(net.a, 1)
    kill_outputs(net.last, 0, 3, 7)
    small = check(masked(net), IMAGE)
    assert (small.a.out_channels, small.b.out_channels, small.last.in_channels) == (1, 2, 5)


class Sequence(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.rnn = kind(4, 5, batch_first=True, **options)
        self.fc = nn.Linear(5 * (2 if self.rnn.bidirectional else 1), 2)

    def forward(self, x):
        return self.fc(self.rnn(self.embed(x))[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_hidden_units_that_nobody_reads(kind):
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
def test_hidden_units_that_stay_at_zero(kind, gate):
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
def test_other_recurrent_layers(options):
    net = Sequence(nn.LSTM, **options)
    kill_outputs(net.fc, 0)
    net.rnn.weight_hh_l0.data[:, 0] = 0
    kill_inputs(net.embed, 2)
    small = check(masked(net), torch.randn(2, 7, 3))
    alone = "bias" in options
    assert small.rnn.hidden_size == (4 if alone else 5)
    assert small.embed.out_features == 4  # without a bias the constant cannot go


def test_a_given_first_state_blocks():
    class Given(Sequence):
        def forward(self, x, h):
            return self.fc(self.rnn(self.embed(x), h)[1][0])

    net = Given(nn.GRU)
    kill_outputs(net.fc, 0)
    net.rnn.weight_hh_l0.data[:, 0] = 0
    small = snip.shrink(masked(net), (torch.randn(2, 7, 3), torch.randn(1, 2, 5)))
    assert small.rnn.hidden_size == 5


# ---- code between the layers ----


def with_code(between):
    """Make two convolutions with any code between them, and unit 1 and 3 dead."""
    layers = {"first": nn.Conv2d(2, 4, 1), "last": nn.Conv2d(4, 2, 1), "fc": nn.Linear(4 * 36, 3)}
    net = Net(lambda m, x: BETWEEN[between](m, m.first(x)), **layers)
    net.norm, net.scale = nn.LayerNorm([4, 6, 6]), nn.Parameter(torch.randn(4, 1, 1))
    kill_inputs(net.first, 1)
    kill_outputs(net.last, 3)
    return net


def _unpacked(y):
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
def test_code_that_is_understood(between):
    net = with_code(between)
    net.fc.weight.data[:, 3 * 36 :] = 0
    small = check(masked(net), IMAGE)
    assert small.first.out_channels == 2


@pytest.mark.parametrize("between", list(BLOCKED))
def test_code_that_is_not_understood_blocks(between):
    net = with_code(between)
    if between == "matmul":
        net.first.bias.data.zero_()
    small = check(masked(net), IMAGE)
    assert small.first.out_channels == 4
    assert not [k for k in snip.shrink_report(small).layers if k.units[0] != k.units[1]]


def test_a_sum_over_positions_grows_with_the_image():
    code = lambda m, x: m.last(m.first(x).sum((2, 3), keepdim=True))  # noqa: E731
    net = Net(code, first=nn.Conv2d(2, 3, 1), last=nn.Conv2d(3, 2, 1))
    kill_inputs(net.first, 0, 1)
    net.first.bias.data[0] = 0
    small = check(masked(net), IMAGE)
    assert small.first.out_channels == 2
    wide = torch.randn(1, 2, 9, 9)
    torch.testing.assert_close(small(wide), net(wide))


def test_writes_in_place_do_not_fool_it():
    def code(m, x):
        y = m.first(x)
        z = m.relu(y.flatten(1))
        z += 1
        return m.a(z) + m.b(y)  # y has been written to as well

    net = Net(code, first=nn.Linear(3, 4), a=nn.Linear(4, 2), b=nn.Linear(4, 2))
    net.relu = nn.ReLU(inplace=True)
    kill_inputs(net.first, 0, 1)
    kill_outputs(net.b, 1)
    small = check(masked(net), torch.randn(5, 3))
    assert small.first.out_features == 3  # unit 1 is read where its value is known only


@pytest.mark.parametrize("whole", [False, True])
def test_a_size_that_was_asked_for_before_a_write_in_place(whole):
    def code(m, x):
        y = m.first(x)
        rows = y.size() if whole else y.size(0)
        y.relu_()
        return m.last(y.view(rows[0] if whole else rows, -1))

    net = Net(code, first=nn.Conv2d(2, 4, 1), last=nn.Linear(144, 2))
    net.last.weight.data[:, :36] = 0
    assert check(masked(net), IMAGE).first.out_channels == 3


def test_a_pattern_that_is_resized_depends_on_the_size_of_the_image():
    def code(m, x):
        return m.last(F.interpolate(m.pattern(m.first(x)), (6, 6)).flatten(1))

    net = Net(code, first=nn.Conv2d(2, 3, 1), pattern=nn.Conv2d(3, 2, 3, padding=1))
    net.last = nn.Linear(72, 2)
    kill_inputs(net.first, 0)
    net.first.bias.data[0] = 1
    net.pattern.weight.data[1, 1:] = 0  # reads only the constant: a pattern with a border
    small = check(masked(net), IMAGE)
    wide = torch.randn(2, 2, 9, 9)
    torch.testing.assert_close(small(wide), net(wide))
