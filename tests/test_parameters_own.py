"""Layers of one's own: pruned where their weight is used as it is, left out where it is not."""

import pytest
import torch
import torch.nn.functional as F
from libraries import timm
from timm.layers import Conv2dSame, ScaledStdConv2d, StdConv2d
from torch import nn

import snip
from snip.network.network import Network


def standard(weight):
    return weight - weight.mean((1, 2, 3), keepdim=True)


class Forward(nn.Conv2d):
    def forward(self, x):
        return self._conv_forward(x, standard(self.weight), self.bias)


class ConvForward(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return F.conv2d(x, standard(weight), bias, self.stride, self.padding)


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Cosine(nn.Linear):
    def forward(self, x):
        return F.linear(F.normalize(x), F.normalize(self.weight), self.bias)


class Counting(nn.Linear):
    calls = 0

    def forward(self, x, scale):  # cannot be tried with one input
        self.calls += 1
        return super().forward(x) * scale


@pytest.mark.parametrize("kind", [Forward, ConvForward, StdConv2d, ScaledStdConv2d])
def test_a_layer_that_standardises_its_weight_is_left_out_with_the_reason(kind):
    model = nn.Sequential(kind(3, 8, 3), nn.Flatten(), nn.Linear(8, 4))
    assert list(snip.prunable_parameters(model)) == ["2.weight", "2.bias"]
    reason = Network.of(model).left_out["0.weight"]
    assert reason == (
        f"layer type {kind.__name__} computes with another weight, in which zeros do not stay zero"
    )
    chosen = snip.prunable_parameters(model, lambda name, module, param: name == "0.weight")
    assert list(chosen) == ["0.weight"]


@pytest.mark.parametrize(
    "layer",
    [
        Doubled(4, 4), Cosine(4, 4), Counting(4, 4), Conv2dSame(4, 4, 3, stride=2),
        timm.layers.Linear(4, 4), nn.utils.parametrizations.weight_norm(Doubled(4, 4)),
    ],
    ids=lambda layer: type(layer).__name__,
)  # fmt: skip
def test_a_layer_that_keeps_its_zeros_is_pruned_as_ever(layer):
    state = torch.get_rng_state()
    assert len(snip.prunable_parameters(nn.Sequential(layer))) == 2
    assert torch.equal(torch.get_rng_state(), state)
    assert getattr(layer, "calls", 0) == 0


def test_a_parameter_that_is_neither_weight_nor_bias_does_not_compete():
    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.gain = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.gain * super().forward(x)

    assert Network.of(Scaled()).left_out == {"gain": "neither weight nor bias of a Scaled"}
    older = nn.utils.weight_norm(Scaled())  # as hooks, which store the weight under other names
    assert list(snip.prunable_parameters(older)) == ["bias", "weight_v"]
