"""Shrinking by hand: units that nobody reads, and constants that are folded."""

from __future__ import annotations

import pytest
import torch
from shrink_parts import IMAGE, check, kept, kill_inputs, kill_outputs, masked
from torch import nn

from snip.export.shrink import shrink_report
from snip.masks import Masks, held_masks


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
