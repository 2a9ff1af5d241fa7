"""What a report warns of, what it cannot know, and what it refuses."""

import pytest
import torch
from connectivity_parts import Strange
from report_parts import applied, mlp, mlp_masks
from torch import nn

import snip


def test_without_an_example_it_says_what_is_missing():
    model = applied()
    report = snip.report(model)
    assert report.flops_before is report.effective_sparsity is report.flops_ratio is None
    assert len(report.notes) == 2
    assert all("inputs=" in note for note in report.notes)
    assert report.rows[0].dead_units == 1  # of its own weights alone
    assert "FLOPs per sample" not in str(report)


def test_collapse_and_empty_layers_are_named_with_a_fix():
    masks = mlp_masks()
    empty = snip.Masks({n: m & (n != "3.weight") for n, m in masks.items()})
    report = snip.report(applied(empty), inputs=torch.zeros(1, 2))
    assert "no path" in report.warnings[0]
    assert "'3.weight'" in report.warnings[1]
    assert all("floor=" in warning and "scope=" in warning for warning in report.warnings)
    assert report.effective_sparsity > 0.9


def test_an_empty_layer_beside_a_shortcut():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.side, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.last(x + self.side(x))

    model = Skip()
    snip.Masks({"side.weight": torch.zeros(2, 2).bool()}).apply(model)
    (warning,) = snip.report(model, inputs=torch.zeros(1, 2)).warnings
    assert "another way" in warning


def test_a_class_that_nothing_reaches():
    masks = mlp_masks()
    dead = snip.Masks(
        {n: m & torch.tensor([[1], [0]]).bool() if n == "3.weight" else m for n, m in masks.items()}
    )
    report = snip.report(applied(dead), inputs=torch.zeros(1, 2))
    assert report.dead_outputs == (1,)
    assert "output 1 of 2 is not reached" in report.warnings[0]


def test_masks_that_are_not_applied():
    (warning,) = snip.report(mlp(), mlp_masks(), inputs=torch.zeros(1, 2)).warnings
    assert warning.startswith("9 pruned weights of '0.weight', '0.bias'")
    assert "masks.apply(model)" in warning


def test_bad_input_is_refused_with_a_reason():
    with pytest.raises(snip.InputError, match="holds no masks"):
        snip.report(mlp())
    with pytest.raises(snip.InputError, match="another model"):
        snip.report(nn.Linear(2, 2), mlp_masks())
    with pytest.raises(snip.InputError, match="does not run on inputs"):
        snip.report(applied(), inputs=torch.zeros(1, 7))
    with pytest.raises(snip.KindError):
        snip.report(mlp(), {"0.weight": torch.ones(3, 2)})


def test_a_model_that_cannot_be_followed_is_still_reported():
    model = Strange()
    snip.Masks({"fc.weight": torch.eye(2).bool()}).apply(model)
    report = snip.report(model, inputs=torch.zeros(1, 2))
    assert report.flops_after == 4 + 2
    assert report.effective_kept is None
    assert "could not be followed" in report.notes[0]
    assert "inputs=" not in report.notes[0]  # they were given
    assert "Paths" in str(report)


def test_a_forward_that_writes_into_its_input_does_not_change_the_batch():
    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return self.fc(x.add_(1))

    model, batch = Writing(), torch.ones(3, 2)
    snip.Masks({"fc.weight": torch.eye(2).bool()}).apply(model)
    assert snip.report(model, inputs=batch).effective_kept == 2
    assert torch.equal(batch, torch.ones(3, 2))
