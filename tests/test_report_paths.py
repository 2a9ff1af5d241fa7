"""What a report says of paths: a cure that was not tried yet, and counts where none go back."""

import re

import torch
from connectivity_parts import SPARSITY, heard
from networks import chain
from torch import nn

import snip


def test_the_cure_is_not_what_was_done_already():
    model, batch = chain()
    heard(lambda: snip.prune(model, batch, sparsity=SPARSITY, floor=0))
    report = snip.report(model, inputs=batch[0])
    assert report.warnings
    for warning in report.warnings:
        assert "auto" not in warning
        assert re.search(r"prune again with floor=0\.\d+, with scope='erk' or", warning)


def test_a_flop_budget_has_no_floor_to_name():
    model, batch = chain()
    with torch.no_grad():
        model[3].weight.mul_(1e-12)  # the gradients of all others, and with them their scores
    heard(lambda: snip.prune(model, batch, sparsity=0.999, budget="flops"))
    warnings = snip.report(model, inputs=batch[0]).warnings
    assert warnings
    assert not any("floor" in warning for warning in warnings)


class OneWay(nn.Module):
    """A custom function without a finite derivative: paths cannot be followed back through it."""

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient / torch.zeros_like(gradient)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4, bias=False)

    def forward(self, x):
        return OneWay.Same.apply(self.layer(x))


def test_outputs_are_counted_where_paths_cannot_be_followed_back():
    for rows, said in (([1, 1, 0, 1], "output 2 of 4 is not reached"), ([0] * 4, "no path")):
        model = OneWay()
        mask = torch.tensor(rows).bool()[:, None].expand(4, 3).clone()
        snip.Masks({"layer.weight": mask}).apply(model)
        report = snip.report(model, inputs={"x": torch.ones(2, 3)})
        assert "no finite derivative" in report.notes[0]
        assert "inputs=" not in report.notes[0]
        assert said in report.warnings[0]
    each_from_one = torch.eye(3)[[0, 1, 2, 0]].bool()
    snip.Masks({"layer.weight": each_from_one}).apply(model)
    assert snip.report(model, inputs={"x": torch.ones(2, 3)}).warnings == ()
