"""The report: numbers by hand, every form it is shown in, and what it warns of."""

import io
import json
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console
from torch import nn

import snip
from snip.masks import Provenance
from snip.reports.text import as_text, percent, short


def mlp():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def mlp_masks(**provenance):
    return snip.Masks(
        {
            "3.weight": torch.tensor([[1, 1, 0], [1, 0, 0]]).bool(),
            "0.weight": torch.tensor([[1, 0], [0, 0], [1, 1]]).bool(),
            "0.bias": torch.tensor([1, 0, 1]).bool(),
            "3.bias": torch.tensor([0, 0]).bool(),
        },
        Provenance(**provenance),
    )


def applied(masks=None):
    model = mlp()
    (masks or mlp_masks()).apply(model)
    return model


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


def test_without_an_example_it_says_what_is_missing():
    model = applied()
    report = snip.report(model)
    assert report.flops_before is report.effective_sparsity is report.flops_ratio is None
    assert len(report.notes) == 2
    assert all("inputs=" in note for note in report.notes)
    assert report.rows[0].dead_units == 1  # of its own weights alone
    assert "FLOPs per sample" not in str(report)


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


def test_repr_is_short_and_print_is_the_table():
    report = snip.report(applied(), inputs=torch.zeros(1, 2))
    assert repr(report) == (
        "Report(Sequential: 52.94% sparse, 8 of 17 kept; 39.13% of the whole model; "
        "48.28% of the FLOPs)"
    )
    collapsed = snip.report(mlp(), mlp_masks())
    assert repr(collapsed).endswith("39.13% of the whole model; 1 warning)")
    assert str(report).startswith("parameter")


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
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            return torch.from_numpy(self.fc(x).detach().numpy())

    model = Strange()
    snip.Masks({"fc.weight": torch.eye(2).bool()}).apply(model)
    report = snip.report(model, inputs=torch.zeros(1, 2))
    assert report.flops_after == 4 + 2
    assert report.effective_kept is None
    assert "could not be followed" in report.notes[0]
    assert "inputs=" not in report.notes[0]  # they were given
    assert "Paths" in str(report)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_text_fits_any_width(width):
    model = applied()
    text = as_text(snip.report(model, inputs=torch.zeros(1, 2)), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert any(line.startswith("parameter") for line in lines)
    assert ("shape" in text) == (width >= 100)
    assert "Effective sparsity 76.47%" in " ".join(lines)


def test_rich_prints_it_and_brackets_are_no_markup():
    model = nn.ModuleDict({"[red]": nn.Linear(2, 2)})
    masks = snip.Masks({"[red].weight": torch.eye(2).bool()})
    masks.apply(model)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(snip.report(model))
    assert "[red].weight" in console.export_text()


def test_dict_is_json_and_complete():
    report = snip.report(applied(), inputs=torch.zeros(1, 2))
    read = json.loads(json.dumps(report.to_dict()))
    assert read["kept"] == 8
    assert read["rows"][0]["shape"] == [3, 2]
    assert read["rows"][0]["density"] == 0.5
    assert read["effective_sparsity"] == report.effective_sparsity
    assert read["left_out"]["1.bias"] == "normalisation layer"


class Checker(HTMLParser):
    """Balanced tags, and every text that is shown."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_is_whole_escaped_and_self_contained():
    model = nn.ModuleDict({"<b>": nn.Linear(2, 2)})
    evil = Provenance(left_out={"<b>.bias": "<script>"})
    masks = snip.Masks({"<b>.weight": torch.eye(2).bool()}, evil)
    masks.apply(model)
    html = snip.report(model)._repr_html_()
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert "<b>.weight" in checker.text
    assert "<script>" not in html
    assert "http" not in html
    assert '<rect width="50.00"' in html
    assert "style=" not in html  # a strict Content-Security-Policy would refuse it


def test_numbers_are_short_but_never_lie():
    assert [percent(x) for x in (0, 0.5, 1, 0.99996, 0.00001)] == [
        "0.00%",
        "50.00%",
        "100.00%",
        "99.996%",
        "0.001%",
    ]
    assert [short(x) for x in (0, 12, 1500, 532_400, 3.1e9)] == ["0", "12", "1.5k", "532k", "3.1G"]


def test_reporting_leaves_the_model_alone():
    model = applied().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    snip.report(model, inputs=torch.zeros(1, 2))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
