"""A budget of costs: the most score per cost, never more than was given."""

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import snip


def test_a_cost_budget_takes_the_most_score_per_cost():
    scores = {"dear": torch.tensor([8.0, 4.0]), "cheap": torch.tensor([3.0, 1.0, 0.5])}
    masks = snip.select(scores, sparsity=0.5, costs={"dear": 4.0, "cheap": 1.0})
    # 11 in all, 5.5 to spend: 3 (1), 8/4 (4), then 1 does not fit any more, nor does 4/4
    assert masks["dear"].tolist() == [True, False]
    assert masks["cheap"].tolist() == [True, False, False]
    with pytest.raises(snip.InputError, match="positive"):
        snip.select(scores, sparsity=0.5, costs={"dear": 4.0})
    with pytest.raises(snip.InputError, match="no floor"):
        snip.select(scores, sparsity=0.5, floor=1, costs={"dear": 4.0, "cheap": 1.0})


@given(seed=st.integers(0, 200), sparsity=st.floats(0, 0.999))
@example(seed=0, sparsity=1e-9)  # 234.999999765 to spend, which 235 is more than
@settings(max_examples=50)
def test_a_cost_budget_is_kept_and_well_used(seed, sparsity):
    torch.manual_seed(seed)
    scores = {"a": torch.rand(30), "b": torch.rand(20), "c": torch.zeros(5)}
    costs = {"a": 3.0, "b": 7.0, "c": 1.0}
    budget = (30 * 3 + 20 * 7 + 5 * 1) * (1 - Fraction(str(sparsity)))
    masks = snip.select(scores, sparsity=sparsity, costs=costs)
    spent = sum(int(m.sum()) * Fraction(costs[n]) for n, m in masks.items())
    assert spent <= budget
    assert budget - spent < 7 or masks.kept == masks.total
    kept = torch.cat([scores[n][masks[n]] / costs[n] for n in "ab"])
    lost = torch.cat([scores[n][~masks[n]] / costs[n] for n in "ab"])
    assert not len(kept) or not len(lost) or kept.min() >= lost.max()


def test_fractional_costs_leave_nothing_out():
    masks = snip.select({"w": torch.rand(10)}, sparsity=0.4, costs={"w": 0.1})
    assert masks.kept == 6
    # As floats, three times 0.1 is more than half of all.
    scores = {"cheap": torch.tensor([3.0, 2.0, 1.0]), "dear": torch.tensor([0.1])}
    masks = snip.select(scores, sparsity=0.5, costs={"cheap": 0.1, "dear": 0.3})
    assert masks["cheap"].all()
    assert not masks["dear"].any()


@given(
    costs=st.lists(st.floats(1e-6, 1e6), min_size=3, max_size=3),
    sparsity=st.floats(0, 0.999) | st.sampled_from([1e-17, 1e-9, 0.1, 0.4, 0.9]),
)
@example(costs=[1 / 3, 0.0004, 1e6], sparsity=1e-9)
@settings(max_examples=50)
def test_a_cost_budget_is_kept_at_any_costs(costs, sparsity):
    names = ("a", "b", "c")
    scores = {name: torch.arange(1.0, 9.0) for name in names}
    masks = snip.select(scores, sparsity=sparsity, costs=dict(zip(names, costs, strict=True)))
    exact = {name: Fraction(str(cost)) for name, cost in zip(names, costs, strict=True)}
    spent = sum(int(masks[name].sum()) * exact[name] for name in names)
    left = 8 * sum(exact.values()) * (1 - Fraction(str(sparsity))) - spent
    assert 0 <= left < max(exact.values()) or masks.kept == masks.total


def test_costs_without_an_end_are_refused():
    with pytest.raises(snip.InputError, match="inf"):
        snip.select({"a": torch.rand(3)}, sparsity=0.5, costs={"a": float("inf")})
