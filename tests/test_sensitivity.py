"""Scores against their definition, over several batches, and without a trace."""

import copy
import random
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import KINDS, make
from torch import nn

import snip
from snip.network.network import prunable_parameters


def by_central_differences(model, batch, h=1e-6):
    """Eq. 4: (L(c + h e_j) - L(c - h e_j)) / 2h at c = 1, one connection after the other."""
    inputs, targets = batch
    found = {}
    for name, parameter in prunable_parameters(model).items():
        weight = parameter.data.clone()
        flat, out = parameter.data.view(-1), torch.zeros(parameter.numel(), dtype=weight.dtype)
        for j in range(parameter.numel()):
            losses = []
            for c in (1 + h, 1 - h):
                flat[j] = weight.view(-1)[j] * c
                losses.append(F.cross_entropy(model(inputs), targets).item())
                flat[j] = weight.view(-1)[j]
            out[j] = abs(losses[0] - losses[1]) / (2 * h)
        found[name] = out.view(weight.shape)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_derivative_with_respect_to_c(kind):
    model, (inputs, targets) = make(kind)
    model = model.double().eval()
    batch = (inputs.double() if inputs.is_floating_point() else inputs, targets)
    scores = snip.connection_sensitivity(model, batch, scoring=snip.Scoring(batch_norm="eval"))
    with torch.no_grad():
        expected = by_central_differences(model, batch)
    assert scores.keys() == expected.keys()
    for name, score in scores.items():
        torch.testing.assert_close(score, expected[name], rtol=1e-4, atol=1e-7)


def test_scores_by_hand():
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[2.0, -3.0]])
    scores = snip.connection_sensitivity(
        model, torch.tensor([[1.0, 10.0]]), lambda m, x: m(x).sum()
    )
    assert scores["weight"].tolist() == [[2.0, 30.0]]


@given(cuts=st.lists(st.integers(1, 11), max_size=4, unique=True).map(sorted))
@settings(max_examples=20)
def test_abs_of_sum_does_not_depend_on_how_the_data_is_cut(cuts):
    torch.manual_seed(1)
    model = nn.Linear(3, 2).double()
    inputs, targets = torch.randn(12, 3).double(), torch.randint(0, 2, (12,))
    edges = [0, *cuts, 12]
    pieces = [(inputs[a:b], targets[a:b]) for a, b in pairwise(edges)]
    whole = snip.connection_sensitivity(model, (inputs, targets))
    torch.testing.assert_close(snip.connection_sensitivity(model, pieces), whole)


def test_reductions_by_hand():
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(1.0)
    batches = [torch.tensor([[1.0]]), torch.tensor([[-3.0]]), torch.tensor([[4.0]])]

    def score(reduction, **settings):
        scoring = snip.Scoring(reduction=reduction, **settings)
        scores = snip.connection_sensitivity(
            model, iter(batches), lambda m, x: m(x).mean(), scoring=scoring
        )
        return scores["weight"].item()

    assert score("abs_of_sum") == pytest.approx(2 / 3)
    assert score("sum_of_abs") == pytest.approx(8 / 3)
    assert score("ema", decay=0.5) == pytest.approx(0.5 * (0.5 * 1 + 0.5 * 3) + 0.5 * 4)


def test_order_of_batches_does_not_matter_but_for_ema():
    model, (inputs, targets) = make("mlp")
    batches = [(inputs[i : i + 1], targets[i : i + 1]) for i in range(5)]
    for reduction, same in (("abs_of_sum", True), ("sum_of_abs", True), ("ema", False)):
        scoring = snip.Scoring(reduction=reduction)
        one = snip.connection_sensitivity(model, batches, scoring=scoring)
        two = snip.connection_sensitivity(model, batches[::-1], scoring=scoring)
        assert torch.allclose(one["first.weight"], two["first.weight"]) is same


class Restless(nn.Module):
    """Draws random numbers, writes buffers and replaces one in every forward."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.linear = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        random.random(), np.random.rand()
        return self.linear(self.drop(self.norm(x)))


@pytest.mark.parametrize("batch_norm", ["eval", "train"])
def test_scoring_leaves_no_trace(batch_norm):
    model = Restless()
    model.drop.eval()
    model.drop.train()
    model.linear.weight.grad = torch.full_like(model.linear.weight, 7.0)
    calls = []
    model.linear.register_forward_hook(lambda *_: calls.append(1))
    before, hooks = copy.deepcopy(model.state_dict()), len(model.linear._forward_hooks)
    modes = [m.training for m in model.modules()]
    rng, version = torch.get_rng_state(), model.linear.weight._version
    others = random.getstate(), np.random.get_state()[1].tolist()
    calls_buffer = model.calls
    batch = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    snip.connection_sensitivity(model, batch, scoring=snip.Scoring(batch_norm=batch_norm))
    rng_after_batch = torch.get_rng_state()
    assert calls == [1]
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.calls is calls_buffer
    assert model.linear.weight.grad.eq(7).all()
    assert model.norm.weight.grad is None
    assert all(p.requires_grad for p in model.parameters())
    assert len(model.linear._forward_hooks) == hooks
    assert model.linear.weight._version == version
    torch.set_rng_state(rng)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == others
    torch.randn(4, 6)  # the only numbers drawn outside the scoring
    assert torch.equal(torch.get_rng_state(), rng_after_batch)


def test_batch_norm_mode_matters_and_the_authors_is_eval():
    model, batch = make("residual")
    model.train()
    default = snip.connection_sensitivity(model, batch)
    as_eval = snip.connection_sensitivity(model, batch, scoring=snip.Scoring(batch_norm="eval"))
    as_train = snip.connection_sensitivity(model, batch, scoring=snip.Scoring(batch_norm="train"))
    authors = snip.connection_sensitivity(model, batch, scoring=snip.Scoring.authors())
    assert torch.equal(default["stem.weight"], as_train["stem.weight"])
    assert torch.equal(authors["stem.weight"], as_eval["stem.weight"])
    assert not torch.allclose(default["stem.weight"], as_eval["stem.weight"])


def test_trace_is_removed_after_an_error_too():
    model, _ = make("residual")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(snip.InputError, match="NaN or infinite"):
        snip.connection_sensitivity(
            model, (torch.full((2, 2, 4, 4), torch.nan), torch.zeros(2).long())
        )
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_bf16_scores_are_float32_and_close():
    model, batch = make("mlp")
    exact = snip.connection_sensitivity(model, batch)
    half = copy.deepcopy(model).bfloat16()
    scores = snip.connection_sensitivity(half, (batch[0].bfloat16(), batch[1]))
    assert scores["first.weight"].dtype == torch.float32
    torch.testing.assert_close(scores["first.weight"], exact["first.weight"], rtol=0.2, atol=5e-3)


def test_autocast_inside_the_loss():
    model, batch = make("mlp")

    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(model(batch[0]), batch[1])

    exact = snip.connection_sensitivity(model, batch)
    scores = snip.connection_sensitivity(model, batch, loss)
    torch.testing.assert_close(scores["first.weight"], exact["first.weight"], rtol=0.2, atol=5e-3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_works_inside_no_grad_and_inference_mode(mode):
    model, batch = make("mlp")
    expected = snip.connection_sensitivity(model, batch)
    with mode():
        assert torch.equal(
            snip.connection_sensitivity(model, batch)["first.weight"], expected["first.weight"]
        )


def test_gradients_that_share_memory_do_not_mix():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)

        def forward(self, x):
            return self.a.weight + self.b.weight

    model = Sum()
    scores = snip.connection_sensitivity(model, torch.ones(1), lambda m, x: m(x).sum())
    torch.testing.assert_close(scores["a.weight"], model.a.weight.detach().abs())
    torch.testing.assert_close(scores["b.weight"], model.b.weight.detach().abs())


def test_unused_layer_scores_zero():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    scores = snip.connection_sensitivity(
        model, torch.randn(3, 2), lambda m, x: m["used"](x).square().mean()
    )
    assert not scores["unused.weight"].any()


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def scores_of(model, samples, mode):
    batch = torch.randn(samples, 6, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(samples) % 3
    return snip.connection_sensitivity(
        model, (batch, targets), scoring=snip.Scoring(batch_norm=mode)
    )["0.weight"]


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_a_batch_too_small_for_statistics_is_scored_by_the_running_ones(samples):
    model = normed()
    assert torch.equal(scores_of(model, samples, "train"), scores_of(model, samples, "eval"))
    assert not torch.equal(scores_of(model, 8, "train"), scores_of(model, 8, "eval"))
    assert not model[1]._forward_pre_hooks


def test_a_frozen_norm_keeps_its_statistics():
    model = normed()
    model[1].eval().requires_grad_(False)
    assert torch.equal(scores_of(model, 20, "train"), scores_of(model, 20, "eval"))
