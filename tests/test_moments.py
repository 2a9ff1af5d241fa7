"""Second moments of pruned weights are lifted off zero, and no weight moves otherwise for it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import make

import snip
from snip.masks.holding import STEPS_BETWEEN_LIFTS, TINY_SQUARE

OPTIMIZERS = {
    "Adam": ("exp_avg_sq", {}),
    "AdamW": ("exp_avg_sq", {}),
    "AdamW amsgrad": ("max_exp_avg_sq", {"amsgrad": True}),
    "NAdam": ("exp_avg_sq", {}),
    "RAdam": ("exp_avg_sq", {}),
    "RMSprop": ("square_avg", {}),
    "RMSprop centered": ("square_avg", {"centered": True}),
    "Adagrad": ("sum", {}),
}


def optimizer_of(model, name, **settings):
    kind, _, _ = name.partition(" ")
    settings = OPTIMIZERS[name][1] | {"lr": 0.01, "weight_decay": 0.1} | settings
    return getattr(torch.optim, kind)(model.parameters(), **settings)


def train(model, batch, optimizer, steps=3, scale=1.0):
    for _ in range(steps):
        optimizer.zero_grad()
        (scale * F.cross_entropy(model(batch[0]), batch[1])).backward()
        optimizer.step()
    return {n: optimizer.state[p] for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_means_of_what_is_pruned_are_lifted_and_no_step_changes(name, monkeypatch):
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.7)
    other, root = copy.deepcopy(model), OPTIMIZERS[name][0]
    lifted = train(model, batch, optimizer_of(model, name))
    monkeypatch.setattr("snip.masks.holding.SQUARES", {})
    plain = train(other, batch, optimizer_of(other, name))
    for key, mask in masks.items():
        ours, theirs = (state[key][root] for state in (lifted, plain))
        assert not theirs[~mask].any()
        assert (ours[~mask] > TINY_SQUARE / 2).all()
        assert (ours[~mask] <= 1.001 * TINY_SQUARE).all()
        assert torch.equal(ours[mask], theirs[mask])
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    masks.check(model)


def test_means_that_decay_are_lifted_again_in_a_long_loop():
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.7)
    optimizer = optimizer_of(model, "Adam", betas=(0.9, 0.9))
    pruned, mean = ~masks["first.weight"], None
    found = []
    for steps in (1, 1, STEPS_BETWEEN_LIFTS - 2, 1, 1):
        mean = train(model, batch, optimizer, steps)["first.weight"]["exp_avg_sq"]
        values = mean[pruned] / TINY_SQUARE
        assert torch.equal(values, values[:1].expand_as(values))
        found.append(float(values[0]))
    faded = 0.9 ** (STEPS_BETWEEN_LIFTS - 1)
    assert found == pytest.approx([1, 0.9, faded, 1, 0.9], rel=1e-3)
    # A number that has lost digits for being so small would be slow again.
    assert float(mean.new_tensor(faded * TINY_SQUARE)) > torch.finfo(mean.dtype).tiny


@pytest.mark.parametrize("scale", [1.0, 1e-10])
@pytest.mark.parametrize("name", ["Adam", "AdamW amsgrad", "RMSprop", "Adagrad"])
def test_a_released_weight_grows_as_from_a_zero_state(name, scale, monkeypatch):
    """Also with gradients of 1e-11, whose root is not above what is added to it."""
    ours, batch = make("mlp")
    masks = snip.prune(ours, batch, sparsity=0.7)
    theirs = copy.deepcopy(ours)
    for model in (ours, theirs):
        optimizer = optimizer_of(model, name, weight_decay=0.0)
        train(model, batch, optimizer, scale=scale)
        snip.release(model)
        train(model, batch, optimizer, scale=scale)
        monkeypatch.setattr("snip.masks.holding.SQUARES", {})
    for name, mask in masks.items():
        grown = ours.get_parameter(name)[~mask]
        assert grown.any()
        torch.testing.assert_close(grown, theirs.get_parameter(name)[~mask], rtol=0.02, atol=0)


class Signed(torch.optim.Optimizer):
    """A user's own: `sum` is signed, and is no square."""

    def __init__(self, params):
        super().__init__(params, {})

    def new_state(self, p):
        return {"step": 0, "sum": torch.zeros_like(p)}

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p] or self.new_state(p)
            self.state[p] = state
            self.take(p, state)

    def take(self, p, state):
        state["step"] += 1
        state["sum"] -= p.grad
        p += 0.1 * state["sum"]


class Listed(Signed):
    """Its state is a list."""

    def new_state(self, p):
        return [torch.zeros_like(p)]

    def take(self, p, state):
        state[0] -= p.grad
        p += 0.1 * state[0]


class PerWeight(Signed):
    """It counts the steps of each weight."""

    def new_state(self, p):
        return {"step": torch.zeros_like(p), "sum": torch.zeros_like(p)}


class OwnAdam(torch.optim.Adam):
    """A subclass may do anything with its state."""


@pytest.mark.parametrize("kind", [Signed, Listed, PerWeight, OwnAdam])
def test_the_state_of_an_optimiser_that_is_not_torchs_own_is_left_alone(kind):
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.7)
    states = train(model, batch, kind(model.parameters()), steps=1)
    for name, mask in masks.items():
        state = states[name]
        kept = dict(enumerate(state)) if isinstance(state, list) else state
        for key, value in kept.items():
            assert key == "step" or not value[~mask].any()
    masks.check(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_without_a_gradient_have_no_state_to_lift(name):
    model, batch = make("mlp")
    snip.prune(model, batch, sparsity=0.7)
    optimizer = optimizer_of(model, name)
    optimizer.step()
    assert not any("exp_avg_sq" in state for state in optimizer.state.values())
