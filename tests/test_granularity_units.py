"""Whole units: which go together, how many stay, and networks whose units cannot be cut."""

import itertools

import pytest
import torch
from granularity_parts import BATCH, IMAGES
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Attention, Mlp, Residual
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import snip
from snip.models import build
from snip.network.cuts import coupled_units


def test_units_that_are_added_go_together():
    model = Residual()
    masks = snip.prune(model, IMAGES, sparsity=0.5, granularity="channel")
    live = {name: mask.flatten(1).any(1) for name, mask in masks.items() if mask.ndim > 1}
    assert torch.equal(live["stem.weight"], live["body.weight"])
    assert torch.equal(masks["head.weight"].any(0), live["stem.weight"])
    assert torch.equal(masks["stem.bias"], live["stem.weight"])
    assert masks["head.bias"].all()
    assert 0 < int(live["stem.weight"].sum()) < 4


class TwoSums(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(6, 8) for _ in range(3))
        self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        b = self.b(x)
        return self.first(self.a(x) + b) + self.second(self.c(x) + b)


def test_units_of_two_sums_with_a_term_in_common_go_together():
    masks = snip.prune(TwoSums(), BATCH, sparsity=0.5, granularity="channel")
    assert torch.equal(masks["a.bias"], masks["b.bias"])
    assert torch.equal(masks["c.bias"], masks["b.bias"])
    assert 0 < int(masks["b.bias"].sum()) < 8


def test_a_batch_norms_scale_goes_with_its_unit_where_it_is_pruned():
    model = Residual()
    masks = snip.prune(model, IMAGES, sparsity=0.5, granularity="channel", params=lambda *_: True)
    live = masks["stem.weight"].flatten(1).any(1)
    assert torch.equal(masks["norm.weight"], live)
    assert torch.equal(masks["norm.bias"], live)


@given(data=st.data(), widths=st.tuples(*[st.integers(1, 4)] * 4))
@settings(max_examples=100)
def test_the_best_units_stay_as_many_as_kappa_allows(data, widths):
    """Against every count of units, of a network whose units are easy to name."""
    sizes = list(itertools.pairwise(widths))
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in sizes))
    scores = {
        name: torch.tensor(
            data.draw(st.lists(st.integers(0, 3), min_size=p.numel(), max_size=p.numel()))
        )
        .view(p.shape)
        .float()
        for name, p in model.named_parameters()
    }
    total = sum(s.numel() for s in scores.values())
    kappa = data.draw(st.integers(1, total))
    hidden = [(layer, unit) for layer in range(len(sizes) - 1) for unit in range(sizes[layer][1])]

    def kept(units):
        found = {}
        for layer, (reads, makes) in enumerate(sizes):
            rows = [layer == len(sizes) - 1 or (layer, u) in units for u in range(makes)]
            columns = [layer == 0 or (layer - 1, u) in units for u in range(reads)]
            found[f"{layer}.weight"] = torch.tensor([[r and c for c in columns] for r in rows])
            found[f"{layer}.bias"] = torch.tensor(rows)
        return found

    def score(layer, unit):
        own = scores[f"{layer}.weight"][unit].sum() + scores[f"{layer}.bias"][unit]
        return float(own + scores[f"{layer + 1}.weight"][:, unit].sum())

    value = {}
    for layer, (_, makes) in enumerate(sizes[:-1]):
        ranking = sorted(range(makes), key=lambda unit: -score(layer, unit))
        value |= {(layer, unit): 1 - place / makes for place, unit in enumerate(ranking)}
    order = sorted(hidden, key=lambda place: -value[place])
    always = {place for place in hidden if value[place] == 1}
    rest = [place for place in order if place not in always]
    choices = [kept(always | set(rest[:count])) for count in range(len(rest) + 1)]
    fitting = [c for c in choices if sum(int(m.sum()) for m in c.values()) <= kappa]
    granularity = snip.Channel().on(model, torch.zeros(2, widths[0]))
    asked = {"sparsity": 1 - kappa / total, "granularity": granularity}
    if not fitting:
        with pytest.raises(snip.InputError, match="one unit in each layer"):
            snip.select(scores, **asked)
        return
    masks = snip.select(scores, **asked)
    assert {name: mask.tolist() for name, mask in masks.items()} == {
        name: mask.tolist() for name, mask in fitting[-1].items()
    }


@pytest.mark.parametrize(("name", "sparsity"), [("lenet-5-caffe", 0.98), ("vgg-like", 0.97)])
def test_each_layer_of_the_papers_networks_keeps_the_same_share(name, sparsity):
    """One ranking of all units would leave one unit in each of six layers of VGG."""
    model = build(name, seed=0)
    shape = (4, 1, 28, 28) if name.startswith("lenet") else (4, 3, 32, 32)
    batch = torch.randn(shape), torch.arange(4)
    masks = snip.prune(model, batch, sparsity=sparsity, granularity="channel")
    kept = [m.flatten(1).any(1) for m in masks.values() if m.ndim > 1]
    assert kept[-1].all()
    share = max((int(units.sum()) - 1) / len(units) for units in kept[:-1])
    assert all(int(units.sum()) >= share * len(units) for units in kept[:-1])
    assert sparsity <= masks.sparsity < sparsity + 0.005


def test_the_flops_budget_is_kept_by_units():
    model = build("lenet-5-caffe", seed=0)
    batch = torch.randn(4, 1, 28, 28), torch.arange(4)
    snip.prune(model, batch, sparsity=0.7, granularity="channel", budget="flops")
    report = snip.report(model)
    assert 0.25 < report.flops_ratio <= 0.3


def test_what_cannot_be_cut_stays_whole_and_is_told():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), Attention())
    batch = torch.randn(8, 3, 4), torch.arange(8) % 3
    with pytest.warns(snip.SnipWarning, match=r"leaves '3\.attention\.in_proj_weight', .* whole"):
        masks = snip.prune(model, batch, sparsity=0.15, granularity="channel")
    assert all(mask.all() for name, mask in masks.items() if name.startswith("3."))
    assert not masks["0.weight"].all()
    with (
        pytest.warns(snip.SnipWarning, match="whole"),
        pytest.raises(snip.InputError, match=r"cannot remove so much.* at most 0"),
    ):
        snip.prune(model, batch, sparsity=0.9, granularity="channel")


def test_a_norm_that_divides_by_a_length_keeps_its_units():
    model = nn.Sequential(weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    with pytest.warns(snip.SnipWarning, match="whole"):
        masks = snip.prune(model, BATCH, sparsity=0.3, granularity="channel")
    assert masks["0.parametrizations.weight.original1"].all()
    assert model(BATCH[0]).isfinite().all()


class Undecided(Mlp):
    def forward(self, x):
        return super().forward(x) if x.sum() > 1e9 else super().forward(x + 1)


def test_a_forward_that_cannot_be_followed_is_refused_and_left_as_it_was():
    model = Undecided()
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(snip.InputError, match="cannot follow the forward of Undecided"):
        snip.prune(model, BATCH, sparsity=0.5, granularity="channel")
    assert snip.held_masks(model) is None
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


def test_select_must_know_the_network():
    scores = snip.connection_sensitivity(Mlp(), BATCH)
    with pytest.raises(snip.InputError, match=r"snip\.Channel\(\)\.on\(model, batch\)"):
        snip.select(scores, sparsity=0.5, granularity="channel")


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, *, shift=0.0, scale):
        return self.b(torch.relu(self.a(x)) * scale + shift)


def test_a_model_may_be_called_by_position_and_by_name():
    model = Named()
    scale = torch.ones(1)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0], scale=scale), batch[1])

    masks = snip.prune(model, BATCH, sparsity=0.5, granularity="channel", loss_fn=loss)
    assert torch.equal(masks["a.weight"].any(1), masks["b.weight"].any(0))
    assert 0 < int(masks["a.weight"].any(1).sum()) < 8


def test_units_have_numbers_and_places():
    units = coupled_units(Residual(), IMAGES[0])
    assert units.spaces()[units.layers["stem"]].unique().numel() == 1
    assert torch.equal(units.layers["stem"], units.layers["body"])
    assert units.fixed[units.layers["head"]].all()
    assert not units.fixed[units.layers["stem"]].any()
