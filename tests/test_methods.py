"""Every method of the table keeps the same promises; each also agrees with its definition."""

import copy

import pytest
import torch
from networks import make
from torch import nn

import snip
from snip.anatomy.parameters import prunable_parameters
from snip.methods import METHODS
from snip.runs import RunConfig


@pytest.mark.parametrize("method", METHODS)
def test_a_method_scores_every_connection_and_leaves_the_model_as_found(method):
    model, batch = make("residual")
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    scores = METHODS[method].score(model, batch)
    weights = prunable_parameters(model)
    assert list(scores) == list(weights)
    for name, score in scores.items():
        assert score.shape == weights[name].shape
        assert torch.isfinite(score).all()
        assert (score >= 0).all()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("method", METHODS)
def test_prune_keeps_the_highest_scores_of_any_method(method):
    model, batch = make("mlp")
    scoring = snip.Scoring(reduction="sum_of_abs")
    halves = [(batch[0][:2], batch[1][:2]), (batch[0][2:], batch[1][2:])]
    scores = METHODS[method].score(model, halves, scoring=scoring)
    masks = snip.prune(model, halves, sparsity=0.6, method=method, scoring=scoring)
    assert masks == snip.select(scores, sparsity=0.6)
    assert masks.provenance.method == method


@pytest.mark.parametrize("method", METHODS)
def test_a_run_takes_any_method(method):
    assert f"_{method}-0.9_" in RunConfig("lenet-300-100", 0.9, method=method).folder_name


def test_a_run_refuses_other_methods():
    with pytest.raises(snip.InputError, match="unknown method 'snap': did you mean 'snip'"):
        RunConfig("lenet-300-100", 0.9, method="snap")


def test_weight_gradient_by_hand():
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[5.0, -0.1]])
    batches = [torch.tensor([[1.0, 10.0]]), torch.tensor([[1.0, -30.0]])]

    def score(method, **settings):
        scores = METHODS[method].score(
            model, iter(batches), lambda m, x: m(x).sum(), scoring=snip.Scoring(**settings)
        )
        return scores["weight"]

    assert score("weight-gradient").tolist() == [[1.0, 10.0]]  # |10 - 30| / 2
    assert score("weight-gradient", reduction="sum_of_abs").tolist() == [[1.0, 20.0]]
    torch.testing.assert_close(score("snip"), torch.tensor([[5.0, 1.0]]))  # keeps the other one


def test_a_function_of_the_users_own_is_a_method_too():
    def magnitude(model, batches, loss_fn, *, params, scoring):
        return {n: p.detach().abs() for n, p in prunable_parameters(model, params).items()}

    model, batch = make("mlp")
    scores = magnitude(model, batch, None, params=None, scoring=None)
    masks = snip.prune(model, batch, sparsity=0.5, method=magnitude)
    assert masks == snip.select(scores, sparsity=0.5)
    assert "magnitude" in masks.provenance.method


@pytest.mark.parametrize(
    ("method", "message"), [("snap", "did you mean 'snip'"), (3, "method is 3")]
)
def test_what_is_no_method_is_refused(method, message):
    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match=message):
        snip.prune(model, batch, sparsity=0.5, method=method)
