"""Saturated LSTM and GRU: as exact as torch's own, where tanh and the gates are all but +-1."""

import copy
import warnings

import pytest
import torch
from torch import nn

import snip
from snip.engine import kernels
from snip.engine.kernels.library import available
from snip.masks import Masks, held_masks

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


class Reader(nn.Module):
    """A recurrent layer and one number per sequence."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells = kind(6, 20, batch_first=True)
        self.last = nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x)[0].sum(1))


def gradients(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model(x).square().sum().backward()
    return {name: p.grad.double() for name, p in model.named_parameters()}


def error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor], masks: Masks) -> float:
    """The largest error of a recurrent weight's gradient, relative to the largest gradient."""
    worst = largest = 0.0
    for name, true in exact.items():
        if "cells" in name:
            kept = true if found[name].shape == true.shape else true[masks[name]]
            worst = max(worst, (found[name] - kept).abs().max().item())
            largest = max(largest, kept.abs().max().item())
    return worst / max(largest, 1e-30)  # fully shut gates have no gradient at all


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("scale", [3.0, 30.0, 1e4, 1e6])
@pytest.mark.parametrize("batch", [1, 9])
def test_gradients_of_saturated_units_are_as_exact_as_torchs(instruction_set, kind, scale, batch):
    torch.manual_seed(1)
    model, x = Reader(kind), torch.randn(batch, 5, 6) * scale
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        labels = torch.zeros(batch, dtype=torch.int64)
        snip.prune(model, (x / scale, labels), sparsity=0.3)
        fast = snip.accelerate(model, x, ways={})
    masks = held_masks(model)
    exact = gradients(copy.deepcopy(model).double(), x.double())
    theirs = error(gradients(copy.deepcopy(model), x), exact, masks)
    mine = error(gradients(fast, x), exact, masks)
    assert mine <= 4 * theirs + 1e-6


def gru_gates(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernels' own logistic and tanh of each number: one step of a GRU without any weight."""
    index = kernels.LinearIndex.from_mask(torch.zeros(3, 1) > 0)
    gates, states = x.repeat(3, 1), torch.zeros(1, 2 * len(x))
    kernels.gru_forward(index, torch.zeros(0), None, gates, states, len(x))
    return gates[0], gates[2]


@pytest.mark.usefixtures("instruction_set")
def test_saturated_gates_are_exact():
    edges = torch.tensor([9.02, 20.0, 88.0, 89.0, 200.0, 1e4, 1e30, float("inf")])
    logistic, tanh = gru_gates(torch.cat((edges, -edges)))
    assert torch.equal(tanh, torch.ones(16).copysign(torch.cat((edges, -edges))))
    assert torch.equal(logistic[1:8], torch.ones(7))
    assert torch.equal(logistic[11:], torch.zeros(5))
    assert all(gate.isnan().all() for gate in gru_gates(torch.full((3,), float("nan"))))


@pytest.mark.usefixtures("instruction_set")
def test_tanh_is_right_to_the_last_bit_near_one():
    x = torch.linspace(4.001, 9.02, 4001)
    x = torch.cat((x, -x))
    assert (gru_gates(x)[1] - torch.tanh(x.double())).abs().max() < 0.51 * 2**-24
    x = torch.linspace(-4, 4, 4001)
    assert (gru_gates(x)[1] - torch.tanh(x.double())).abs().max() < 5 * 2**-24
