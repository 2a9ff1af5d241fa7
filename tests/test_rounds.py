"""Rounds: their sparsities, who may come back, and what they leave of the model."""

import copy
import warnings
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from expected_warnings import expects
from networks import chain, make
from torch import nn

import snip
from snip.methods import METHODS
from snip.methods.kinds import exponential, halving, one_shot


def test_the_steps_of_snip_it_are_those_of_its_code():
    expected = (0.50, 0.745, 0.868, 0.929, 0.959, 0.975, 0.99)
    # The table rounds 0.8675 and 0.95938 up and 0.97469 as well.
    assert METHODS["snip-it"].rounds(0.99) == pytest.approx(expected, abs=6e-4)
    assert METHODS["snip-it"].rounds(0.3) == (0.3,) * 7
    assert halving(1)(0.9) == pytest.approx((0.5, 0.7, 0.9))


@pytest.mark.parametrize(("method", "count"), [("force", 60), ("iter-snip", 60), ("synflow", 100)])
def test_exponential_rounds_keep_the_same_fraction_each(method, count):
    kept = [1.0] + [1 - sparsity for sparsity in METHODS[method].rounds(0.99)]
    assert len(kept) == count + 1
    assert kept[-1] == pytest.approx(0.01)
    for one, two in pairwise(kept):
        assert two / one == pytest.approx(0.01 ** (1 / count))


def test_a_schedule_ends_exactly_where_it_should():
    for schedule in (one_shot, exponential(7), halving(5)):
        for sparsity in (0.0, 0.1, 1 / 3, 0.95, 0.999):
            steps = schedule(sparsity)
            assert steps[-1] == sparsity
            assert list(steps) == sorted(steps)


class Two(nn.Module):
    """Two sums of two weights each, on an input of one."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(1, 2, bias=False), nn.Linear(1, 2, bias=False)
        self.one.weight.data = torch.tensor([[1.0], [0.4]])
        self.two.weight.data = torch.tensor([[0.9], [0.5]])

    def forward(self, x):
        return self.one(x).sum(), self.two(x).sum()


def off_target(model, x):
    one, two = model(x)
    return ((one - 1.3) ** 2 + (two - 1.0) ** 2) / 2


@pytest.mark.parametrize(
    ("method", "one", "two"),
    [("force", [True, True], [False, False]), ("iter-snip", [True, False], [True, False])],
)
@expects("losses")
def test_force_brings_back_what_iter_snip_does_not(method, one, two):
    # A score is |w| times how far its sum is off. At first both sums are 1.4, 0.1 and 0.4 too
    # much: 0.1 and 0.04, 0.36 and 0.2, so that round 1 removes the weight 0.4 of the first.
    # Then that sum lacks 0.3: 0.3, and 0.12 for the removed one if it may return. Round 2 is to
    # leave two: both methods take the 0.5 of the second sum away, 0.2. Then that sum lacks 0.1:
    # 0.09, and 0.05 for the removed one. The last round leaves two as well: of 0.3, 0.12, 0.09
    # and 0.05 FORCE keeps the first sum's, and Iter-SNIP has 0.3 and 0.09 to choose from.
    plan = replace(METHODS[method], rounds=lambda sparsity: (0.25, 0.5, 0.5))
    masks = snip.prune(
        Two(), torch.ones(1, 1), sparsity=0.5, method=plan, loss_fn=off_target, floor=0
    )
    assert masks["one.weight"].flatten().tolist() == one
    assert masks["two.weight"].flatten().tolist() == two
    assert masks.provenance.rounds == 3


def living(method, model, batch, sparsity):
    """The connections that are left in each round, and the masks."""
    seen = []

    def watched(model, *args, **kwargs):
        weights = snip.prunable_parameters(model).values()
        seen.append(torch.cat([w.detach().flatten() != 0 for w in weights]))
        return METHODS[method].score(model, *args, **kwargs)

    watching = replace(METHODS[method], score=watched)
    masks = snip.prune(model, batch, sparsity=sparsity, method=watching, biases="keep")
    return seen, masks


@pytest.mark.parametrize("method", ["iter-snip", "snip-it", "force"])
def test_every_round_keeps_exactly_its_share_and_only_force_takes_back(method):
    model, batch = chain()
    seen, masks = living(method, model, batch, 0.9)
    counts = [masks.total] + [
        round(masks.total * (1 - step)) for step in METHODS[method].rounds(0.9)[:-1]
    ]
    assert [int(alive.count_nonzero()) for alive in seen] == counts
    seen.append(torch.cat([mask.flatten() for mask in masks.values()]))
    returned = [int((later & ~alive).sum()) for alive, later in pairwise(seen)]
    assert any(returned) == (method == "force")


def test_the_first_round_of_force_is_snip():
    model, batch = make("conv")
    scores = METHODS["force"].score(model, batch)
    for name, score in METHODS["snip"].score(model, batch).items():
        assert torch.equal(scores[name], score)


def test_rounds_of_a_scope_by_layer_take_every_layer_down_step_by_step():
    model, batch = make("mlp")
    scope = {"first": 0.75, "second": 0.5}
    masks = snip.prune(model, batch, sparsity=0.7, method="iter-snip", scope=scope)
    assert int(masks["first.weight"].sum()) + int(masks["first.bias"].sum()) == 14
    assert int(masks["second.weight"].sum()) + int(masks["second.bias"].sum()) == 14
    assert masks.provenance.rounds > 5


def test_a_path_is_repaired_after_rounds_as_after_one():
    # Magnitudes are the same in every round, so that rounds must choose what one shot does, and
    # a repair must take back the best of what earlier rounds have removed.
    model, batch = chain()
    in_rounds = replace(METHODS["magnitude"], rounds=exponential(90))
    for sparsity in (0.5, 0.99):
        chosen = []
        for method in ("magnitude", in_rounds):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                twin = copy.deepcopy(model)
                chosen.append(snip.prune(twin, batch, sparsity=sparsity, method=method))
            repaired = any("instead, which leaves as many" in str(w.message) for w in caught)
            assert repaired == (sparsity == 0.99)
        assert chosen[0] == chosen[1]
        assert chosen[1].provenance.rounds == 90


@expects("losses")
def test_rounds_stop_when_nothing_moves_the_loss_any_more():
    model, batch = chain()
    plan = replace(METHODS["iter-snip"], rounds=lambda sparsity: (0.9985, 0.999, sparsity))
    with pytest.warns(snip.SnipWarning, match="at sparsity 0.9985.*no connection moves the loss"):
        masks = snip.prune(model, batch, sparsity=0.9992, method=plan, floor=0)
    assert masks.kept == round(masks.total * (1 - 0.9992))


@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("method", ["iter-snip", "force", "synflow", "grasp"])
@expects("losses")
def test_weights_under_a_norm_go_through_rounds(method, kind):
    norm = getattr(nn.utils.parametrizations, kind)
    model = nn.Sequential(norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 3))
    before = copy.deepcopy(model.state_dict())
    batch = torch.randn(6, 6), torch.arange(6) % 3
    METHODS[method].score(model, batch)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    masks = snip.prune(model, batch, sparsity=0.7, method=method)
    assert masks.kept == round(masks.total * 0.3)
    assert model(batch[0]).isfinite().all()


def test_zero_parts_are_awake_in_every_round_and_unchanged_after():
    model, batch = make("mlp")
    nn.init.zeros_(model.second.weight)
    with pytest.warns(snip.SnipWarning, match="'second.weight'.*unchanged"):
        masks = snip.prune(model, batch, sparsity=0.6, method="force")
    assert masks["first.weight"].any()
    assert masks["second.weight"].any()
    assert not model.second.weight.any()


def test_random_masks_wake_nothing():
    model, batch = make("mlp")
    nn.init.zeros_(model.second.weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snip.prune(model, batch, sparsity=0.6, method="random")
