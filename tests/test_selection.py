"""Exactly kappa, a fixed tie rule, and every scope."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import snip
from snip.selection.budgets import erk_densities
from snip.selection.topk import keep_top

FEW_VALUES = st.sampled_from([0.0, -0.0, 1e-45, 1e-30, 0.5, 1.0, 1.0000001, 3e38, -2.0])


def reference(scores, kept):
    """Python's stable sort: the highest first, the first position among equals."""
    flat = np.concatenate([s.double().flatten().numpy() for s in scores.values()])
    order = sorted(range(len(flat)), key=lambda i: -(flat[i] + 0.0))
    mask = np.zeros(len(flat), dtype=bool)
    mask[order[:kept]] = True
    return torch.from_numpy(mask)


@st.composite
def tensors(draw):
    dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
    values = FEW_VALUES | st.floats(-(2.0**100), 2.0**100, width=32)
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    return {
        f"p{i}": torch.tensor(draw(st.lists(values, min_size=n, max_size=n))).to(draw(dtypes))
        for i, n in enumerate(sizes)
    }


@given(scores=tensors(), data=st.data())
@settings(max_examples=200)
def test_the_top_k_is_exact_with_the_first_position_winning_ties(scores, data):
    total = sum(s.numel() for s in scores.values())
    kept = data.draw(st.integers(0, total))
    masks = keep_top(scores, kept)
    flat = torch.cat([m.flatten() for m in masks.values()])
    assert torch.equal(flat, reference(scores, kept))


def test_ties_across_parameters_and_chunks(monkeypatch):
    monkeypatch.setattr("snip.selection.topk.PIECE_ELEMENTS", 3)
    scores = {"a": torch.tensor([[1.0, 2.0], [1.0, 1.0]]), "b": torch.ones(5)}
    masks = keep_top(scores, 5)
    assert masks["a"].tolist() == [[True, True], [True, True]]
    assert masks["b"].tolist() == [True, False, False, False, False]


@given(sparsity=st.floats(0, 1, exclude_max=True), seed=st.integers(0, 99))
@settings(max_examples=100)
def test_every_scope_keeps_exactly_kappa(sparsity, seed):
    torch.manual_seed(seed)
    scores = {
        "a.weight": torch.rand(7, 5),
        "a.bias": torch.zeros(7),
        "b.weight": torch.rand(3, 7, 2, 2),
        "c.weight": torch.rand(2, 3),
    }
    total = sum(s.numel() for s in scores.values())
    for scope in ("global", "layer", "uniform", "erk"):
        masks = snip.select(scores, sparsity=sparsity, scope=scope)
        assert masks.kept == round(total * (1 - sparsity)), scope
        assert list(masks) == list(scores)


def test_the_papers_counts():
    scores = {"w": torch.rand(266_610)}
    assert snip.select(scores, sparsity=0.95).kept == 13_331
    assert snip.select(scores, sparsity=0.98).kept == 5_332
    assert snip.select(scores, sparsity=0).kept == 266_610
    assert snip.select(scores, sparsity=1 - 1e-5).kept == 3


def test_scores_that_are_all_zero_keep_the_first():
    masks = snip.select({"a": torch.zeros(3), "b": torch.zeros(3)}, sparsity=0.5)
    assert masks["a"].all()
    assert not masks["b"].any()


def test_selection_does_not_depend_on_the_memory_layout():
    scores = torch.rand(4, 3, 5, 5)
    plain = snip.select({"w": scores}, sparsity=0.9)
    last = snip.select({"w": scores.to(memory_format=torch.channels_last)}, sparsity=0.9)
    assert plain == last


def test_layer_scope_ranks_weight_and_bias_together():
    scores = {"a.weight": torch.tensor([1.0, 2.0, 3.0]), "a.bias": torch.tensor([9.0])}
    masks = snip.select(scores, sparsity=0.5, scope="layer")
    assert masks["a.weight"].tolist() == [False, False, True]
    assert masks["a.bias"].tolist() == [True]
    uniform = snip.select(scores, sparsity=0.5, scope="uniform")
    assert uniform["a.weight"].sum() + uniform["a.bias"].sum() == 2


def test_what_rounding_leaves_goes_to_the_largest_remainders():
    scores = {"a": torch.rand(10), "b": torch.rand(11), "c": torch.rand(13)}
    masks = snip.select(scores, sparsity=0.75, scope="uniform")
    # 8 of 34 stay, of which each wants 2.5, 2.75 and 3.25.
    assert [int(mask.sum()) for mask in masks.values()] == [2, 3, 3]


def test_a_sparsity_per_name():
    scores = {"a.weight": torch.rand(10), "a.bias": torch.rand(4), "b.weight": torch.rand(10)}
    masks = snip.select(scores, sparsity=0.5, scope={"a": 0.0, "b.weight": 0.9})
    assert masks["a.weight"].all()
    assert masks["a.bias"].all()
    assert masks["b.weight"].sum() == 1
    with pytest.raises(snip.InputError, match=r"'b\.weight'"):
        snip.select(scores, sparsity=0.5, scope={"b.weihgt": 0.9})


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [
        (0.9, (0.0796, 0.2302, 1)),
        (0.95, (0.0385, 0.1113, 0.9185)),
        (0.99, (0.0077, 0.0223, 0.1837)),
    ],
)
def test_erk_densities_of_lenet_300_100(sparsity, expected):
    shapes = {"a": (300, 784), "b": (100, 300), "c": (10, 100)}
    assert list(erk_densities(shapes, sparsity).values()) == pytest.approx(expected, abs=1e-4)


def test_erk_densities_of_lenet_5_count_the_kernel():
    shapes = {"1": (20, 1, 5, 5), "2": (50, 20, 5, 5), "3": (500, 800), "4": (10, 500)}
    found = list(erk_densities(shapes, 0.98).values())
    assert found == pytest.approx([0.2779, 0.0143, 0.0146, 0.4572], abs=1e-4)


def test_erk_gives_biases_no_share_of_their_own():
    shapes = {"1": (300, 784), "2": (100, 300), "3": (10, 100)}
    weights = {f"{name}.weight": torch.rand(shape) + 1 for name, shape in shapes.items()}
    bare = snip.select(weights, sparsity=0.98, scope="erk")
    found = [bare.density(name) for name in bare]
    assert found == pytest.approx([0.0154, 0.0445, 0.3674], abs=1e-3)  # as published
    silent = weights | {f"{name}.bias": torch.zeros(shape[0]) for name, shape in shapes.items()}
    masks = snip.select(silent, sparsity=0.98, scope="erk")
    assert masks.kept == round(266_610 * 0.02)
    assert [int(masks[f"{name}.bias"].sum()) for name in shapes] == [0, 0, 0]
    assert [masks.density(name) for name in weights] == pytest.approx(found, rel=0.11)
    loud = weights | {f"{name}.bias": torch.ones(shape[0]) * 9 for name, shape in shapes.items()}
    assert snip.select(loud, sparsity=0.98, scope="erk")["1.bias"].all()  # they compete


def test_erk_densities_add_up_over_the_connections_that_have_them():
    shapes, sizes = {"a": (4, 5), "b": (10, 20)}, {"a": 24, "b": 210}  # of b, ten biases as well
    densities = erk_densities(shapes, 0.9, sizes)
    assert sum(sizes[name] * density for name, density in densities.items()) == pytest.approx(23.4)
    assert densities["a"] / densities["b"] == pytest.approx((9 / 20) / (30 / 200))


@pytest.mark.parametrize(
    "sparsity", [-0.1, 1.0, 95, 100, float("nan"), float("inf"), "0.9", None, True]
)
def test_bad_sparsities_are_refused(sparsity):
    with pytest.raises(snip.InputError, match="sparsity"):
        snip.select({"a": torch.rand(4)}, sparsity=sparsity)


def test_a_percentage_is_recognised():
    with pytest.raises(snip.InputError, match=r"write 0\.95"):
        snip.select({"a": torch.rand(4)}, sparsity=95)
    with pytest.raises(snip.InputError, match=r"sparsity is 1\.5: it must lie in \[0, 1\)"):
        snip.select({"a": torch.rand(4)}, sparsity=1.5)


def test_bad_scores_are_refused():
    with pytest.raises(snip.InputError, match="'a' contain NaN"):
        snip.select({"a": torch.tensor([1.0, torch.nan])}, sparsity=0.5)
    with pytest.raises(snip.KindError, match="non-empty"):
        snip.select({}, sparsity=0.5)
    with pytest.raises(snip.KindError, match="floating-point"):
        snip.select({"a": torch.tensor([1, 2])}, sparsity=0.5)
    with pytest.raises(snip.InputError, match="'uniform'"):
        snip.select({"a": torch.rand(4)}, sparsity=0.5, scope="unifrom")


def test_an_empty_parameter_is_no_trouble():
    scores = {"a": torch.rand(4, 5), "none": torch.zeros(0, 5)}
    for scope in ("global", "layer", "uniform", "erk"):
        assert snip.select(scores, sparsity=0.5, scope=scope).kept == 10


def test_a_scope_that_leaves_the_sparsity_nothing_to_say():
    scores = {"a.weight": torch.rand(40, 5), "b.weight": torch.rand(50, 2)}
    with pytest.warns(snip.SnipWarning, match=r"0\.5 in all: the sparsity=0\.9 .* no effect"):
        snip.select(scores, sparsity=0.9, scope={"a": 0.5, "b.weight": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snip.select(scores, sparsity=0.9, scope={"a": 0.5})  # the rest has the common one
        snip.select(scores, sparsity=0.5, scope={"a": 0.5, "b": 0.5})
