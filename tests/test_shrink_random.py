"""Shrinking on random networks: residual, grouped, concatenated, pooled, with random constants."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from snip.export.shrink import shrink, shrink_report
from snip.masks import Masks

ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "none": lambda x: x}
KINDS = ("plain", "residual", "cat", "depthwise", "grouped", "gated", "maxpool", "avgpool", "up")


class Piece(nn.Module):
    """One random piece: [batch, 6, size, size] in and out."""

    def __init__(self, kind: str, activation: str, padding: int, norm: bool, bias: bool) -> None:
        super().__init__()
        self.kind, self.activation = kind, activation
        groups = {"depthwise": 6, "grouped": 2}.get(kind, 1)
        half = 3 if kind == "cat" else 6
        self.conv = nn.Conv2d(6, half, 3, padding=padding, bias=bias, groups=groups)
        self.norm = nn.BatchNorm2d(half) if norm else None
        self.mix = nn.Conv2d(6, 6, 1, bias=bias)
        self.other = nn.Conv2d(6, 6 - half or 6, 1, bias=bias)
        self.up = nn.ConvTranspose2d(6, 6, 2, stride=2, bias=bias) if kind == "up" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        y = y if self.norm is None else self.norm(y)
        y = ACTIVATIONS[self.activation](y)
        if self.kind == "cat":
            y = self.mix(torch.cat([y, self.other(F.interpolate(x, y.shape[-2:]))], 1))
        elif self.kind == "residual":
            y = F.interpolate(x, y.shape[-2:]) + self.mix(y)
        elif self.kind == "gated":
            y = y * torch.sigmoid(self.other(y.mean((2, 3), keepdim=True)))
        elif self.kind == "maxpool":
            y = F.max_pool2d(y, 3, 2, padding=1)
        elif self.kind == "avgpool":
            y = F.avg_pool2d(y, 3, 2, padding=1)
        elif self.up is not None:
            y = F.max_pool2d(self.up(y), 2)
        return y


class Net(nn.Module):
    def __init__(self, pieces: list[Piece], hidden: int, *, flat: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.pieces = nn.Sequential(*pieces)
        with torch.no_grad():
            size = self.pieces.eval()(self.stem(torch.zeros(1, 2, 20, 20))).shape[-1]
        self.flat = flat
        self.fc = nn.Linear(6 * size**2 if flat else 6, hidden)
        self.head = nn.Linear(hidden, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pieces(self.stem(x))
        x = x.flatten(1) if self.flat else x.mean((2, 3))
        return self.head(F.relu(self.fc(x)))


pieces = st.builds(
    lambda *args: args,
    st.sampled_from(KINDS),
    st.sampled_from(sorted(ACTIVATIONS)),
    st.integers(0, 1),
    st.booleans(),
    st.booleans(),
)
networks = st.builds(
    lambda seed, parts, flat, kept: (seed, parts, flat, kept),
    st.integers(0, 2**31),
    st.lists(pieces, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([0.05, 0.15, 0.3]),
)


def build(spec: tuple, *, constants: bool) -> Net:
    """A network with dead units; `constants`: random biases and statistics, else a fresh draw."""
    seed, parts, flat, kept = spec
    torch.manual_seed(seed)
    net = Net([Piece(*part) for part in parts], 7, flat=flat)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d) and constants:
            some = (torch.rand(4, module.num_features) < 0.5).float()
            module.running_mean.copy_(torch.randn(module.num_features) * some[0])
            module.running_var.copy_(torch.rand(module.num_features) + 0.5)
            module.bias.data = torch.randn(module.num_features) * some[1]
        elif getattr(module, "bias", None) is not None:
            some = (torch.rand(len(module.bias)) < 0.5).float() if constants else 0
            module.bias.data = torch.randn(len(module.bias)) * some
    net = net.double()
    weights = {n: p for n, p in net.named_parameters() if p.ndim > 1}
    masks = {n: torch.rand(p.shape) < kept for n, p in weights.items()}
    for n, mask in masks.items():  # whole units without inputs or outputs
        if mask.shape[1] > 1:
            mask[torch.rand(len(mask)) < 0.3] = False
            mask[:, torch.rand(mask.shape[1]) < 0.3] = False
        bias = n.removesuffix("weight") + "bias"
        if bias in dict(net.named_parameters()) and torch.rand(()) < 0.5:
            weights[bias] = net.get_parameter(bias)
    masks |= {n: torch.rand(p.shape) < 0.7 for n, p in weights.items() if p.ndim == 1}
    Masks(masks).apply(net)
    return net


@settings(max_examples=40, deadline=None)
@given(networks, st.booleans())
def test_outputs_are_equal(spec: tuple, constants: bool) -> None:
    net = build(spec, constants=constants).eval()
    x = torch.randn(3, 2, 20, 20).double()
    small = shrink(net, x)
    torch.testing.assert_close(small(x), net(x), rtol=1e-9, atol=1e-9)
    if not {"grouped", "depthwise"} & {part[0] for part in spec[1]}:
        # (Of groups one may be left: then it is an ordinary layer that can lose more.)
        assert shrink_report(shrink(small, x)).removed == 0
    if not spec[2]:  # a network that takes any size must do so after, too
        y = torch.randn(2, 2, 23, 23).double()
        torch.testing.assert_close(small(y), net(y), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("depth", [1, 3])
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.05, 0.2]))
def test_random_mlps(depth: int, seed: int, kept: float) -> None:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(9, 9), nn.BatchNorm1d(9), nn.Tanh()]
    net = nn.Sequential(*layers, nn.Linear(9, 4)).double().eval()
    weights = {n: p for n, p in net.named_parameters() if p.ndim > 1}
    Masks({n: torch.rand(p.shape) < kept for n, p in weights.items()}).apply(net)
    x = torch.randn(5, 9).double()
    small = shrink(net, x)
    torch.testing.assert_close(small(x), net(x), rtol=1e-9, atol=1e-9)
    for layer, change in zip(
        (m for m in small if isinstance(m, nn.Linear)), shrink_report(small).layers, strict=True
    ):
        assert layer.out_features == change.units[1]
        assert layer.weight.shape == (change.units[1], change.inputs[1])
