"""Initialisers: their distributions, and the fans of every layer type."""

import math

import pytest
import torch
from torch import nn

from snip.models.initializers import TRUNCATED_STD, initialize
from snip.network.layout import layout_of

VARIANCE = {"vs": 1 / 400, "vs-h": 2 / 400, "vs-x": 2 / (400 + 1000)}


def test_truncated_std_is_that_of_the_cut_normal() -> None:
    density = math.exp(-2.0) / math.sqrt(2 * math.pi)  # of the standard normal at 2
    inside = math.erf(2 / math.sqrt(2))
    assert math.sqrt(1 - 4 * density / inside) == pytest.approx(TRUNCATED_STD, rel=1e-12)


@pytest.mark.parametrize("name", VARIANCE)
def test_variance_scaling_has_its_std_after_the_cut(name: str) -> None:
    layer = nn.Linear(400, 1000)
    initialize(layer, name, seed=1)
    std = math.sqrt(VARIANCE[name])
    weight = layer.weight.detach()
    assert weight.std().item() == pytest.approx(std, rel=0.01)
    assert weight.mean().item() == pytest.approx(0, abs=0.01 * std)
    bound = 2 * std / TRUNCATED_STD
    assert 0.999 * bound < weight.abs().max().item() <= bound * (1 + 1e-6)
    # Share of a normal cut at two sigma that lies within one sigma: 0.6827 / 0.9545.
    within = (weight.abs() < bound / 2).double().mean().item()
    assert within == pytest.approx(0.7152, abs=0.003)


@pytest.mark.parametrize("std", [None, 0.05])
def test_random_normals_ignore_the_fans(std: float | None) -> None:
    layer = nn.Linear(400, 1000)
    width = 1.0 if std is None else std
    initialize(layer, "rn", seed=1, std=std)
    assert layer.weight.std().item() == pytest.approx(width, rel=0.01)
    assert layer.weight.abs().max().item() > 4 * width
    initialize(layer, "tn", seed=1, std=std)
    # TensorFlow's truncated normal is not rescaled: the cut takes 12% of the width.
    assert layer.weight.std().item() == pytest.approx(TRUNCATED_STD * width, rel=0.01)
    assert layer.weight.abs().max().item() <= 2 * width * (1 + 1e-6)


FANS = [  # layer, parameter, inputs that a unit sums, units that an input feeds
    (nn.Linear(7, 5), "weight", 7, 5),
    (nn.Bilinear(3, 4, 5), "weight", 12, 5),
    (nn.Conv1d(6, 8, 3), "weight", 18, 24),
    (nn.Conv2d(6, 8, (3, 5)), "weight", 6 * 15, 8 * 15),
    (nn.Conv2d(6, 8, 3, groups=2), "weight", 3 * 9, 4 * 9),
    (nn.Conv2d(6, 6, 3, groups=6), "weight", 9, 9),
    (nn.Conv3d(2, 4, 2), "weight", 16, 32),
    (nn.ConvTranspose2d(6, 8, 3), "weight", 6 * 9, 8 * 9),
    (nn.ConvTranspose2d(6, 8, 3, groups=2), "weight", 3 * 9, 4 * 9),
    (nn.ConvTranspose1d(4, 2, 5), "weight", 20, 10),
    (nn.LSTM(7, 5), "weight_ih_l0", 7, 5),
    (nn.LSTM(7, 5), "weight_hh_l0", 5, 5),
    (nn.LSTM(7, 5, proj_size=3), "weight_hh_l0", 3, 5),
    (nn.LSTM(7, 5, proj_size=3), "weight_hr_l0", 5, 3),
    (nn.LSTM(7, 5, 2, bidirectional=True), "weight_ih_l1_reverse", 10, 5),
    (nn.GRU(7, 5), "weight_ih_l0", 7, 5),
    (nn.RNN(7, 5), "weight_hh_l0", 5, 5),
    (nn.LSTMCell(7, 5), "weight_ih", 7, 5),
    (nn.GRUCell(7, 5), "weight_hh", 5, 5),
    (nn.RNNCell(7, 5), "weight_ih", 7, 5),
    (nn.MultiheadAttention(6, 2), "in_proj_weight", 6, 6),
    (nn.MultiheadAttention(6, 2, kdim=4, vdim=3), "k_proj_weight", 4, 6),
    (nn.MultiheadAttention(6, 2, kdim=4, vdim=3), "v_proj_weight", 3, 6),
    (nn.MultiheadAttention(6, 2), "out_proj.weight", 6, 6),
    (nn.LSTM(7, 5), "bias_ih_l0", 5, 5),
    (nn.MultiheadAttention(6, 2), "in_proj_bias", 6, 6),
    (nn.Conv2d(6, 8, 3), "bias", 8, 8),
]


@pytest.mark.parametrize(("layer", "name", "fan_in", "fan_out"), FANS)
def test_fans(layer: nn.Module, name: str, fan_in: int, fan_out: int) -> None:
    owner, _, key = name.rpartition(".")
    parameter = layer.get_parameter(name)
    layout = layout_of(layer.get_submodule(owner), key, parameter.ndim)
    assert layout.fans(parameter.shape) == (fan_in, fan_out)


def test_every_gate_is_drawn_by_its_own_fans() -> None:
    lstm = nn.LSTM(400, 100)
    initialize(lstm, "vs-x", seed=0)
    for gate in lstm.weight_ih_l0.detach().chunk(4):  # [100, 400] each
        assert gate.std().item() == pytest.approx(math.sqrt(2 / 500), rel=0.02)
    attention = nn.MultiheadAttention(200, 2)
    initialize(attention, "vs-x", seed=0)
    for block in attention.in_proj_weight.detach().chunk(3):
        assert block.std().item() == pytest.approx(math.sqrt(2 / 400), rel=0.02)


def test_transposed_convolution_uses_its_inputs() -> None:
    layer = nn.ConvTranspose2d(64, 16, 4)
    initialize(layer, "vs", seed=0)
    assert layer.weight.std().item() == pytest.approx(1 / math.sqrt(64 * 16), rel=0.02)


def test_biases_can_be_drawn_like_in_the_authors_first_release() -> None:
    layer = nn.Linear(10, 10_000)
    initialize(layer, "vs", biases="vs", seed=0)
    assert layer.bias.std().item() == pytest.approx(1 / math.sqrt(10_000), rel=0.03)
    weights = layer.weight.clone()
    initialize(layer, "vs", seed=0)
    assert torch.equal(layer.weight, weights)
    assert layer.bias.eq(0).all()
