"""An input of which nothing reaches the output is repaired, or named."""

import pytest
import torch
from connectivity_parts import heard
from torch import nn

import snip


class TwoInputs(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.a, self.b, self.o = nn.Linear(64, 64), nn.Linear(500, 64), nn.Linear(64, 10)
        self.part = part

    def forward(self, x, y):
        return self.o(torch.relu(self.a(x)) + self.part * torch.relu(self.b(y)))


def pruned(part=1e-3, **settings):
    torch.manual_seed(0)
    model, x, y = TwoInputs(part), torch.randn(50, 64), torch.randn(50, 500)

    def loss(m, b):
        return nn.functional.cross_entropy(m(*b), torch.arange(50) % 10)

    masks, said = heard(lambda: snip.prune(model, (x, y), sparsity=0.9, loss_fn=loss, **settings))
    return model, masks, said, (x, y)


def felt(model, x, y):
    """Whether the output changes with y."""
    return not torch.equal(model(x, y), model(x, torch.randn_like(y)))


def test_an_input_without_a_name_is_told_by_its_position():
    class Any(TwoInputs):
        def forward(self, *inputs, scale=1.0):
            return super().forward(*inputs) * scale

    model = Any(1.0)
    snip.Masks({"b.weight": torch.zeros(64, 500).bool()}).apply(model)
    inputs = torch.randn(2, 64), torch.randn(2, 500)
    (warning,) = snip.report(model, inputs=inputs).warnings
    assert "nothing of the input '1' reaches the output" in warning


def test_an_input_that_is_cut_off_is_repaired_and_named():
    model, masks, said, inputs = pruned()
    assert len(said) == 1
    assert "nothing of the input 'y' reaches the output: pruned with floor=" in said[0]
    assert masks.kept == round(masks.total * 0.1)
    assert felt(model, *inputs)


def test_whoever_asks_for_no_floor_is_told_which_input_is_lost():
    model, _, said, inputs = pruned(floor=0)
    assert len(said) == 1
    assert "nothing of the input 'y' reaches the output: the network cannot learn" in said[0]
    assert "With floor=0.01 a path from every input is left: that was tried." in said[0]
    assert not felt(model, *inputs)
    (warning,) = [s for s in snip.report(model, inputs=inputs).warnings if "'b.weight'" in s]
    assert "nothing of the input 'y' reaches the output" in warning
    assert "another way" not in warning


@pytest.mark.parametrize("floor", [0, "auto"])
def test_inputs_that_reach_the_output_are_left_alone(floor):
    model, masks, said, inputs = pruned(part=1.0, floor=floor)
    assert said == []
    assert masks.provenance.floor == 0
    assert snip.report(model, inputs=inputs).warnings == ()
