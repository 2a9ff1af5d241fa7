"""The numbers of a report, by hand."""

import pytest
import torch
from expected_warnings import expects
from report_parts import applied, mlp
from torch import nn

import snip


def test_numbers_by_hand():
    report = snip.report(applied(), inputs=torch.zeros(4, 2))
    rows = {row.name: row for row in report.rows}
    assert list(rows) == ["0.weight", "0.bias", "3.weight", "3.bias"]  # the model's order
    first = rows["0.weight"]
    assert (first.shape, first.kept, first.total, first.density) == ((3, 2), 3, 6, 0.5)
    assert (first.flops_before, first.flops_after) == (12, 6)
    # Unit 1 has no input and unit 2 no output; two of its three weights lead nowhere.
    assert (first.units, first.dead_units, first.unconnected) == (3, 2, 2)
    assert (rows["0.bias"].units, rows["0.bias"].unconnected) == (None, 1)
    assert rows["0.bias"].flops_after == 2
    assert (rows["3.weight"].dead_units, rows["3.weight"].unconnected) == (0, 1)
    assert (report.kept, report.total) == (8, 17)
    assert report.sparsity == pytest.approx(9 / 17)
    assert report.effective_kept == 4
    assert report.effective_sparsity == pytest.approx(13 / 17)
    assert (report.flops_before, report.flops_after) == (12 + 3 + 12 + 2, 6 + 2 + 6)
    assert report.flops_ratio == pytest.approx(14 / 29)
    assert report.left_out == {
        "1.weight": "normalisation layer",
        "1.bias": "normalisation layer",
    }
    assert report.warnings == report.notes == ()


def test_what_prune_remembers_needs_no_input():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(5, 1, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    masks = snip.prune(model, batch, sparsity=0.5)
    report = snip.report(model)
    assert report.notes == ()
    assert report.kept == masks.kept
    assert report.flops_before == 2 * (16 * 8 + 8 * 3) + 8 + 3
    assert report.effective_kept is not None
    assert report == snip.report(model, masks) == snip.report(model, inputs=batch)


@expects("left out")
def test_it_says_what_became_of_the_biases():
    assert "Biases: 2 of 5 kept." in str(snip.report(applied()))
    model = mlp()
    nn.init.zeros_(model[0].bias)
    nn.init.zeros_(model[3].bias)
    batch = torch.randn(9, 2), torch.arange(9) % 2
    snip.prune(model, batch, sparsity=0.6)
    assert "Biases: 0 of 5 kept. One that starts at zero" in " ".join(
        str(snip.report(model)).split()
    )
    kept = mlp()
    snip.prune(kept, batch, sparsity=0.5, biases="keep")
    assert "bias, kept (5 in 2 tensors" in " ".join(str(snip.report(kept)).split())
    assert "Biases:" not in str(snip.report(kept))


@expects("left out", "losses")
def test_it_says_how_many_biases_started_at_zero_and_claims_it_of_no_others():
    batch = torch.randn(9, 2), torch.arange(9) % 2
    model = mlp()
    nn.init.zeros_(model[0].bias)
    with torch.no_grad():
        model[3].bias.copy_(torch.tensor([9.0, -9.0]))
    snip.prune(model, batch, sparsity=0.6)
    text = " ".join(str(snip.report(model)).split())
    assert "Biases: 2 of 5 kept. One that starts at zero has no sensitivity, as 3 did: " in text
    model = mlp()
    with torch.no_grad():
        for layer in (model[0], model[3]):
            layer.bias.fill_(1e-9)
    snip.prune(model, batch, sparsity=0.6)
    text = " ".join(str(snip.report(model)).split())
    assert "Biases: 0 of 5 kept. biases='keep' leaves them all." in text


def test_layers_that_were_not_up_for_pruning_still_cost():
    model = mlp()
    masks = snip.Masks({"0.weight": torch.zeros(3, 2).bool()})
    masks.apply(model)
    report = snip.report(model, inputs=torch.zeros(1, 2))
    assert report.flops_left_out == 3 + 12 + 2
    assert (report.flops_before, report.flops_after) == (29, 17)
    assert report.left_out["3.weight"] == "not in these masks"


def test_the_headline_says_the_sparsity_of_the_whole_model_too():
    model = nn.Sequential(nn.Linear(10, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 8))
    model[2].requires_grad_(False)
    masks = snip.Masks({"0.weight": torch.eye(5, 10).bool()})
    masks.apply(model)
    report = snip.report(model)
    assert report.left_out_sizes == {"1.weight": 5, "1.bias": 5, "2.weight": 40, "2.bias": 8}
    assert (report.parameters, report.parameters_left) == (108, 63)
    assert report.model_sparsity == pytest.approx(45 / 108)
    text = " ".join(str(report).split())
    assert (
        "Sparsity 90.00% of the prunable weights: 5 of 50 kept; 41.67% of the whole model: "
        "63 of 108 parameters left." in text
    )
    assert (
        "Left out: frozen (requires_grad=False) (48 in 2 tensors, 44.44% of the model); "
        "normalisation layer (10 in 2 tensors, 9.26% of the model)." in text
    )
    whole = nn.Linear(10, 5, bias=False)
    snip.Masks({"weight": torch.eye(5, 10).bool()}).apply(whole)
    assert "Sparsity 90.00%: 5 of 50 kept." in str(snip.report(whole))


def test_masks_of_two_prunings_leave_out_what_neither_has():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.PReLU())
    batch = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    for layer in ("0.", "2."):
        snip.prune(model, batch, sparsity=0.5, params=lambda n, m, p, at=layer: n.startswith(at))
    report = snip.report(model)
    assert list(report.left_out) == ["3.weight"]
    assert report.parameters == sum(p.numel() for p in model.parameters())


def test_reporting_leaves_the_model_alone():
    model = applied().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    snip.report(model, inputs=torch.zeros(1, 2))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
