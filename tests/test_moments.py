"""Second moments of pruned weights are lifted off zero, and no weight moves otherwise for it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import make

import snip
from snip.masks import moments

ROOTS = {"Adam": "exp_avg_sq", "AdamW": "exp_avg_sq", "RMSprop": "square_avg", "Adagrad": "sum"}


def trained(model, batch, name, steps=3):
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    return {n: optimizer.state[p] for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", ROOTS)
def test_only_means_of_what_is_pruned_are_lifted_and_no_step_changes(name, monkeypatch):
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.7)
    other = copy.deepcopy(model)
    lifted = trained(model, batch, name)
    monkeypatch.setattr(moments, "ROOTED", ())
    plain = trained(other, batch, name)
    for key, mask in masks.items():
        ours, theirs = (state[key][ROOTS[name]] for state in (lifted, plain))
        assert not theirs[~mask].any()
        assert (ours[~mask] > moments.TINY / 2).all()
        assert (ours[~mask] <= moments.TINY).all()
        assert torch.equal(ours[mask], theirs[mask])
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    masks.check(model)


def test_means_that_decay_are_lifted_again_by_the_count_of_the_optimiser():
    mask = torch.tensor([True, False, False])
    state = {"step": torch.tensor(1.0 + moments.EVERY), "exp_avg_sq": torch.tensor([0.0, 0.0, 3.0])}
    moments.lift(state, mask)
    expected = torch.tensor([0.0, moments.TINY, 3.0])
    assert torch.equal(state["exp_avg_sq"], expected)
    state = {"step": torch.tensor(2.0), "exp_avg_sq": torch.zeros(3)}
    moments.lift(state, mask)
    assert not state["exp_avg_sq"].any()


def test_states_of_other_kinds_are_left_alone():
    mask = torch.tensor([True, False, False])
    rows = {"step": 1, "sum": torch.zeros(2), "square_avg": 0.0}
    moments.lift(rows, mask)
    assert not rows["sum"].any()
    moments.lift({"momentum_buffer": torch.zeros(3)}, mask)
    moments.lift({}, mask)
