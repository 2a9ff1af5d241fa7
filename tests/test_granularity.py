"""Blocks and n of m inputs: exact counts, the tie rule, and oracles that try everything."""

import dataclasses
import itertools
from fractions import Fraction
from math import prod

import pytest
import torch
from cli_fixtures import HALF, LENET
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import ConvNet, Mlp
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)

import snip
from snip.anatomy.normed import normed_weights
from snip.cli import main
from snip.methods import METHODS, AtInitialisation
from snip.methods.controls import randomized, shuffled
from snip.runs import RunConfig
from snip.selection.granularity import checked_granularity

# Those that rank connections; "erk" gives shares, which only blocks take.
SCORING = [n for n, m in METHODS.items() if isinstance(m, AtInitialisation) and m.scope is None]
BATCH = torch.randn(8, 6), torch.arange(8) % 3
IMAGES = torch.randn(4, 2, 6, 6), torch.arange(4) % 3


@st.composite
def parameters(draw, fewest_dimensions=1):
    """Scores of a few parameters, with many equal ones; exact in any order of summation."""
    shapes = st.lists(st.integers(1, 5), min_size=fewest_dimensions, max_size=3)
    found = {}
    for i, shape in enumerate(draw(st.lists(shapes, min_size=1, max_size=3))):
        values = st.lists(st.integers(-2, 3), min_size=prod(shape), max_size=prod(shape))
        found[f"layer{i}.weight"] = torch.tensor(draw(values)).float().view(shape)
    return found


@st.composite
def some_left(draw, scores):
    """Masks of what earlier prunings left."""
    return {
        name: torch.tensor(
            draw(st.lists(st.booleans(), min_size=s.numel(), max_size=s.numel()))
        ).view(s.shape)
        for name, s in scores.items()
        if draw(st.booleans())
    }


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


@given(data=st.data(), n=st.integers(1, 3), m=st.integers(2, 4))
@settings(max_examples=100)
def test_the_best_n_of_every_m_inputs_stay(data, n, m):
    scores = data.draw(parameters(fewest_dimensions=2))
    within = data.draw(some_left(scores))
    if n >= m:
        n = m - 1
    follows = [name for name, score in scores.items() if score.shape[1] % m == 0]
    if not follows:
        with pytest.raises(snip.InputError, match=f"divides by {m}"):
            snip.select(scores, granularity=f"{n}:{m}", within=within)
        return
    masks = snip.select(scores, granularity=f"{n}:{m}", within=within)
    for name, score in scores.items():
        left = within.get(name, torch.ones(score.shape, dtype=torch.bool))
        if name not in follows:
            assert torch.equal(masks[name], left)
            continue
        # [outputs, inputs, positions] -> a group is m consecutive inputs at one position
        values, allowed, kept = (x.reshape(*x.shape[:2], -1) for x in (score, left, masks[name]))
        for out, start, at in itertools.product(
            range(values.shape[0]), range(0, values.shape[1], m), range(values.shape[2])
        ):
            places = [i for i in range(start, start + m) if allowed[out, i, at]]
            best = sorted(places, key=lambda i: -values[out, i, at])[:n]
            assert [i for i in range(start, start + m) if kept[out, i, at]] == sorted(best)


def test_two_of_four_is_the_rule_of_torch_sparse():
    """A weight goes through torch's compressed form and back only if it is 2:4."""
    model = nn.Sequential(nn.Conv2d(8, 64, 3), nn.Flatten(), nn.Linear(64 * 4, 64))
    snip.prune(model, (torch.randn(4, 8, 4, 4), torch.arange(4)), granularity="2:4")
    linear = model[2].weight.detach().half()
    # Channels last, as GPUs compute convolutions: [outputs, positions x inputs].
    convolution = model[0].weight.detach().permute(0, 2, 3, 1).flatten(1).half()
    for weight in (linear, convolution[:, :64]):
        values, places = sparse_semi_structured_from_dense_cutlass(weight)
        assert values.shape == (weight.shape[0], weight.shape[1] // 2)
        assert torch.equal(sparse_semi_structured_to_dense_cutlass(values, places), weight)
    full = linear.clone()
    full[0, :4] = 1.0
    back = sparse_semi_structured_to_dense_cutlass(*sparse_semi_structured_from_dense_cutlass(full))
    assert not torch.equal(back, full)


def test_n_of_m_has_its_own_sparsity_and_leaves_what_does_not_divide():
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 3))
    with pytest.raises(snip.InputError, match=r"'2:4' removes 0\.5 .* sparsity is 0\.9"):
        snip.prune(model, IMAGES, sparsity=0.9, granularity="2:4")
    with pytest.warns(snip.SnipWarning, match=r"leaves '0\.weight' as before"):
        masks = snip.prune(model, IMAGES, sparsity=0.5, granularity="2:4")
    assert masks["0.weight"].all()
    assert masks["0.bias"].all()
    assert (masks["2.weight"].view(-1, 4).sum(1) == 2).all()
    assert masks.provenance.granularity == "2:4"
    assert masks.provenance.sparsity_asked == 0.5
    assert "1 of 2 weights follow it, '0.weight' cannot" in str(snip.report(model))


def test_transposed_layers_are_grouped_along_their_inputs():
    model = ConvNet()  # its transposed convolution has a weight [inputs, outputs, ...]
    with pytest.warns(snip.SnipWarning, match="conv.weight"):
        masks = snip.prune(model, IMAGES, granularity="1:4")
    assert (masks["up.weight"].sum(0) == 1).all()
    model = ConvNet()
    masks = snip.prune(model, IMAGES, sparsity=0.6, granularity="2x4")
    blocks = masks["up.weight"].transpose(0, 1).reshape(2, 2, 4, 4).sum((1, 3))
    assert set(blocks.flatten().tolist()) <= {0, 8}


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


def test_a_norm_keeps_its_lengths_under_blocks():
    model = nn.Sequential(weight_norm(nn.Linear(16, 8)), nn.ReLU(), nn.Linear(8, 3))
    batch = torch.randn(8, 16), torch.arange(8) % 3
    masks = snip.prune(model, batch, sparsity=0.6, granularity="2x4")
    for name, normed in normed_weights(model).items():
        assert normed.parts(masks[name]).any(1).all()
    assert model(batch[0]).isfinite().all()


def own_scores(model, batches, loss_fn=None, *, params=None, scoring=None):
    return {n: p.detach().square() for n, p in snip.prunable_parameters(model, params).items()}


@pytest.mark.parametrize("method", [*SCORING, own_scores])
@pytest.mark.parametrize("granularity", ["element", "channel", "2:4", "2x2"])
def test_every_method_selects_in_every_granularity(method, granularity):
    model = Mlp()
    settings = {} if granularity == "2:4" else {"sparsity": 0.6}
    masks = snip.prune(model, BATCH, method=method, granularity=granularity, **settings)
    assert masks.provenance.granularity == granularity
    assert 0 < masks.kept < masks.total
    masks.check(model)
    assert snip.Masks.from_zeros(model).kept <= masks.kept
    copy = snip.accelerate(model, BATCH[0], ways={})
    torch.testing.assert_close(copy(BATCH[0]), model(BATCH[0]))


@pytest.mark.parametrize("granularity", ["channel", "2:4", "2x2"])
def test_rounds_score_what_the_rounds_before_have_left(granularity):
    masks = snip.prune(Mlp(), BATCH, sparsity=0.5, method="snip-it", granularity=granularity)
    assert masks.provenance.rounds > 1


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


@pytest.mark.parametrize("control", [shuffled, randomized])
def test_controls_of_whole_groups_are_single_connections(control):
    masks = control(snip.prune(Mlp(), BATCH, sparsity=0.6, granularity="2x2"))
    assert masks.provenance.granularity == "element"


@pytest.mark.parametrize("granularity", ["element", "channel", "2x2"])
def test_a_pruned_model_is_pruned_further_within_its_masks(granularity):
    model = Mlp()
    for earlier in ("element", granularity):
        first = snip.prune(model, BATCH, sparsity=0.3, granularity=earlier)
        second = snip.prune(model, BATCH, sparsity=0.6, granularity=granularity)
        assert second.kept <= round(second.total * 0.4)
        assert all(bool((first[n] | ~mask).all()) for n, mask in second.items())
        model = Mlp()


@pytest.mark.parametrize(
    ("text", "value"),
    [("element", snip.Element()), (" Channel", snip.Channel()), ("1:4", snip.NofM(1, 4)),
     ("4X8", snip.Block(4, 8))],
)  # fmt: skip
def test_names_are_values(text, value):
    assert checked_granularity(text) == value
    assert checked_granularity(value) is value
    assert str(value) == text.strip().lower()


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ("chanel", "did you mean 'channel'"),
        ("4x", "did you mean '4x4'"),
        ("4:4", "removes nothing"),
        ("0:4", "at least 1"),
        ("0x4", "at least 1"),
        (4, "give a name such as 'channel'"),
    ],
)
def test_slips_are_told_and_nothing_is_changed(given_, sentence):
    model = Mlp()
    before = {name: p.clone() for name, p in model.named_parameters()}
    with pytest.raises(snip.InputError, match=sentence):
        snip.prune(model, BATCH, sparsity=0.5, granularity=given_)
    assert snip.held_masks(model) is None
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"granularity": "channel", "sparsity": 0.5, "scope": "erk"}, "no scope, no floor and"),
        ({"granularity": "2:4", "floor": 3}, "no scope, no floor and"),
        ({"granularity": "2:4", "method": "erk"}, "no method with shares"),
        ({"granularity": "2:4", "budget": "flops"}, "no cost budget"),
        ({"granularity": "4x4"}, "sparsity is missing"),
    ],
)
def test_what_does_not_go_together_is_refused(settings_, sentence):
    with pytest.raises(snip.InputError, match=sentence):
        snip.prune(Mlp(), BATCH, **settings_)


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


def test_a_run_has_a_granularity_that_renames_no_older_folder():
    plain = RunConfig(model="lenet-300-100", sparsity=0.5)
    assert plain == RunConfig(model="lenet-300-100", sparsity=0.5, granularity="element")
    blocks = dataclasses.replace(plain, granularity="4X4")
    assert blocks.granularity == "4x4"
    assert blocks.folder_name != plain.folder_name
    assert RunConfig.from_dict(blocks.to_dict()) == blocks
    dense = dataclasses.replace(plain, sparsity=0)
    assert dataclasses.replace(dense, granularity="2:4").folder_name == dense.folder_name
    with pytest.raises(snip.InputError, match=r"'1:4' removes 0\.75"):
        dataclasses.replace(plain, granularity="1:4")
    with pytest.raises(snip.InputError, match="did you mean 'channel'"):
        dataclasses.replace(plain, granularity="channels")


@pytest.mark.usefixtures("empty_folder")
def test_the_command_line_prunes_in_any_granularity(tmp_path):
    prune = ["prune", *LENET, *HALF, "--out", str(tmp_path / "m.safetensors"), "--granularity"]
    for granularity in ("channel", "2:4", "4x4"):
        assert main([*prune, granularity]) == 0
        masks = snip.Masks.load(tmp_path / "m.safetensors")
        assert masks.provenance.granularity == granularity
    assert main([*prune, "5x"]) != 0
