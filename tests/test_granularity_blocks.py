"""Whole blocks: an oracle that tries every count, scopes, floors, budgets, reports and repair."""

import itertools
from fractions import Fraction

import pytest
import torch
from expected_warnings import expects
from granularity_parts import BATCH, own_scores, parameters, some_left
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Mlp, make
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import snip
from snip.network.norms import normed_weights


def blocks_of(scores, within, rows, columns):
    """Every block as its places, in order: (parameter, flat index) of what is left of it."""
    found = {}
    for name, score in scores.items():
        width = score[0].numel() if score.ndim > 1 else 1
        for flat in range(score.numel()):
            key = (name, flat // width // rows, flat % width // columns)
            if name not in within or within[name].view(-1)[flat]:
                found.setdefault(key, []).append((name, flat))
    order = {name: i for i, name in enumerate(scores)}
    return [found[key] for key in sorted(found, key=lambda key: (order[key[0]], *key[1:]))]


@given(data=st.data(), rows=st.integers(1, 3), columns=st.integers(1, 4))
@settings(max_examples=100)
def test_the_best_whole_blocks_stay_as_many_as_kappa_allows(data, rows, columns):
    scores = data.draw(parameters())
    within = data.draw(some_left(scores))
    blocks = blocks_of(scores, within, rows, columns)
    total, left = sum(s.numel() for s in scores.values()), sum(map(len, blocks))
    kappa = data.draw(st.integers(0, left))
    means = [
        Fraction(sum(int(scores[name].view(-1)[i]) for name, i in block), len(block))
        for block in blocks
    ]
    ranking = sorted(range(len(blocks)), key=lambda i: -means[i])  # stable: ties in order
    wanted = list(
        itertools.takewhile(
            lambda count: sum(len(blocks[i]) for i in ranking[:count]) <= kappa,
            range(1, len(blocks) + 1),
        )
    )
    chosen = {place for i in ranking[: len(wanted)] for place in blocks[i]}
    asked = {"sparsity": 1 - kappa / total, "granularity": snip.Block(rows, columns)}
    if kappa == total:
        asked["sparsity"] = 0.0
    if not chosen:
        with pytest.raises(snip.InputError, match=r"less than the best block|must lie in"):
            snip.select(scores, within=within, **asked)
        return
    masks = snip.select(scores, within=within, **asked)
    kept = {(n, i) for n, mask in masks.items() for i in mask.view(-1).nonzero().flatten().tolist()}
    assert kept == chosen


@pytest.mark.parametrize("scope", ["layer", "uniform", "erk", {"first": 0.9}])
def test_blocks_follow_every_scope(scope):
    torch.manual_seed(0)
    scores = {"first.weight": torch.rand(16, 16), "second.weight": torch.rand(8, 32)}
    masks = snip.select(scores, sparsity=0.5, scope=scope, granularity="4x4")
    shares = snip.select(scores, sparsity=0.5, scope=scope)
    for name, mask in masks.items():
        kept = int(mask.sum())
        assert kept % 16 == 0
        assert kept <= int(shares[name].sum()) < kept + 16


def test_blocks_keep_a_floor_in_whole_blocks_and_the_budget():
    scores = {"a.weight": torch.rand(16, 16) + 5, "b.weight": torch.ones(6, 4)}
    scores["b.weight"][5] = 2
    masks = snip.select(scores, sparsity=0.5, floor=5, granularity="4x4")
    assert int(masks["b.weight"].sum()) == 8  # the block at the border, which is enough
    assert masks.kept <= 140
    with pytest.raises(snip.InputError, match="floor=130 asks for"):
        snip.select(scores, sparsity=0.5, floor=130, granularity="4x4")


def test_blocks_stay_inside_a_cost_budget():
    torch.manual_seed(0)
    scores = {"a.weight": torch.rand(8, 8), "b.weight": torch.rand(8, 8)}
    costs = {"a.weight": 10.0, "b.weight": 1.0}
    masks = snip.select(scores, sparsity=0.5, costs=costs, granularity="4x4")
    spent = 10 * int(masks["a.weight"].sum()) + int(masks["b.weight"].sum())
    assert masks["b.weight"].all()
    assert 352 - 160 < spent <= 352


def test_a_block_may_be_larger_than_the_weight():
    scores = {"a.weight": torch.rand(3, 5), "b.weight": torch.rand(4, 4)}
    masks = snip.select(scores, sparsity=0.5, granularity="999999x999999")
    assert masks.kept in (15, 16)
    assert {bool(mask.all()) or not bool(mask.any()) for mask in masks.values()} == {True}


@expects("losses")
def test_a_norm_keeps_its_lengths_under_blocks():
    model = nn.Sequential(weight_norm(nn.Linear(16, 8)), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(8, 16), torch.arange(8) % 3
    masks = snip.prune(model, batch, sparsity=0.6, granularity="2x4")
    for name, normed in normed_weights(model).items():
        assert normed.parts(masks[name]).any(1).all()
    assert model(batch[0]).isfinite().all()


def test_parts_of_a_packed_weight_have_floors_in_whole_blocks():
    scores = {"weight": torch.ones(12, 8)}
    scores["weight"][4:8] = 0
    packed = {"weight": ("q", "k", "v")}
    masks = snip.select(scores, sparsity=0.5, floor=10, granularity="4x4", packed=packed)
    blocks = masks["weight"].view(3, 4, 2, 4).sum((1, 3))
    assert blocks.tolist() == [[16, 0], [16, 0], [16, 0]]
    # Blocks of three rows would lie in two parts: the weight has one floor.
    masks = snip.select(scores, sparsity=0.5, floor=10, granularity="3x4", packed=packed)
    assert set(masks["weight"].view(4, 3, 2, 4).sum((1, 3)).flatten().tolist()) == {0, 12}


@expects("losses")
def test_blocks_keep_floors_where_gates_of_biases_are_not_pruned():
    model, batch = make("lstm")
    masks = snip.prune(
        model, batch, sparsity=0.5, floor=3, granularity="5x2", biases="keep", method="magnitude"
    )
    assert not any("bias" in name for name in masks)
    for weight in (masks["rnn.weight_ih_l0"], masks["rnn.weight_hh_l0"]):
        assert all(int(gate.sum()) >= 3 for gate in weight.chunk(4))


@expects("losses")
def test_the_report_counts_blocks():
    model = Mlp()
    masks = snip.prune(model, BATCH, sparsity=0.6, granularity="4x3")
    report = snip.report(model)
    assert report.granularity == "4x3"
    # 2 x 2 + 2 blocks of the first layer's weight and bias, 1 x 3 + 1 of the second's.
    assert "of 10 blocks kept" in report.granularity_note
    assert report.granularity_note in str(report)
    other = snip.Masks(masks, snip.masks.Provenance(granularity="of another version"))
    assert snip.report(model, other).granularity_note == ""


def test_a_network_without_a_path_is_repaired_in_whole_blocks():
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(3)))
    with torch.no_grad():
        model[1].weight *= 1e-3  # removed first where the weight itself is the score
    batch = torch.randn(4, 16), torch.arange(4)

    def scores(model, batches, loss_fn=None, **settings_):
        for x, _ in batches:
            model(x)  # how the model is called must be seen for its paths to be followed
        return own_scores(model, batches)

    with pytest.warns(snip.SnipWarning, match=r"pruned with floor=.* instead"):
        masks = snip.prune(model, batch, method=scores, sparsity=0.8, granularity="4x4")
    blocks = masks["1.weight"].view(4, 4, 4, 4).sum((1, 3))
    assert set(blocks.flatten().tolist()) == {0, 16}
    assert masks.kept == 144  # the most whole blocks that 154 connections allow
