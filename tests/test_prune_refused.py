"""What `snip.prune` refuses, names or warns of."""

import copy

import pytest
import torch
import torch.nn.functional as F
from networks import make
from torch import nn

import snip


@pytest.mark.parametrize("sparsity", [95, 1.0, -1, float("nan"), 0.9999999])
def test_bad_sparsity_changes_nothing(sparsity):
    model, batch = make("mlp")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(snip.InputError, match="sparsity"):
        snip.prune(model, batch, sparsity=sparsity)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert snip.held_masks(model) is None


def test_an_unknown_redraw_changes_nothing():
    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.5)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(snip.InputError, match="'vs-h'"):
        snip.initialize(model, "vs_he")
    assert snip.held_masks(model) == masks
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_an_unknown_method_suggests_the_nearest():
    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match="unknown method 'snipp': did you mean 'snip'"):
        snip.prune(model, batch, sparsity=0.5, method="snipp")
    assert snip.held_masks(model) is None


@pytest.mark.parametrize("method", ["snip", "random", "magnitude"])
def test_a_model_made_in_inference_mode_is_refused(method):
    with torch.inference_mode():
        model, batch = make("mlp")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(snip.InputError, match=r"inference_mode.*second\.weight.*outside"):
        snip.prune(model, batch, sparsity=0.5, method=method)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert snip.held_masks(model) is None


def test_zero_gradients_are_named():
    model, batch = make("mlp")
    nn.init.zeros_(model.second.weight)
    with pytest.raises(
        snip.InputError,
        match=r"every connection sensitivity is zero.*'second\.weight'.*zero_parts='woken'",
    ):
        snip.prune(model, batch, sparsity=0.5, scoring=snip.Scoring.authors())
    assert snip.held_masks(model) is None


def test_a_silent_layer_is_named():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    with pytest.warns(snip.SnipWarning, match=r"does not depend on 'unused\.weight'"):
        snip.prune(
            model,
            torch.randn(3, 2),
            sparsity=0.1,
            loss_fn=lambda m, x: m["used"](x).square().mean(),
        )


def test_an_empty_layer_is_named_with_the_fix():
    model, batch = make("mlp")
    with torch.no_grad():
        model.second.weight.mul_(1e-4)
        model.second.bias.zero_()
        model.first.weight.mul_(100)
    scores = snip.connection_sensitivity(model, batch)
    assert scores["second.weight"].max() != scores["first.weight"].max()
    with pytest.warns(
        snip.SnipWarning, match=r"nothing is left of 'second\.weight'.*With sparsity=0\.88 a path"
    ):
        snip.prune(model, batch, sparsity=0.97)


def test_an_unknown_word_for_biases_is_refused():
    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match="'keep'"):
        snip.prune(model, batch, sparsity=0.5, biases="kept")
    assert snip.held_masks(model) is None


def test_a_flop_budget_needs_to_see_the_layers_at_work():
    model, (inputs, targets) = make("mlp")

    def loss(model, batch):
        return F.cross_entropy(model.second(torch.tanh(model.first(inputs))), targets)

    with pytest.raises(snip.InputError, match=r"FLOPs of 'first\.weight' are unknown"):
        snip.prune(model, inputs, sparsity=0.5, loss_fn=loss, budget="flops")
    assert snip.held_masks(model) is None


def test_a_bad_redraw_leaves_the_pruned_model():
    def fails(model, name):
        raise RuntimeError("mine")

    model, batch = make("mlp")
    masks = snip.prune(model, batch, sparsity=0.5)
    before = copy.deepcopy(model.state_dict())
    for redraw, error in ((snip.initialize, snip.InputError), (fails, RuntimeError)):
        with pytest.raises(error):
            redraw(model, 5)
        assert snip.held_masks(model) == masks
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"floor": -1}, "floor is -1"),
        ({"floor": None}, "floor is None"),
        ({"floor": 3, "scope": "erk"}, "scope='global'"),
        ({"floor": 3, "budget": "flops"}, "no floor"),
        ({"scope": "layer", "budget": "flops"}, "no scope"),
    ],
)
def test_what_cannot_go_together_is_refused_before_any_work(request_, message):
    def loss(model, batch):
        raise AssertionError("scored")

    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match=message):
        snip.prune(model, batch, sparsity=0.5, loss_fn=loss, **request_)


def test_a_scope_is_checked_before_any_work():
    def loss(model, batch):
        raise AssertionError("scored")

    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match="'uniform'"):
        snip.prune(model, batch, sparsity=0.5, loss_fn=loss, scope="unifrom")
    with pytest.raises(snip.InputError, match="'first'"):
        snip.prune(model, batch, sparsity=0.5, loss_fn=loss, scope={"frist": 0.9})
    with pytest.raises(snip.InputError, match=r"scope\['first'\].*0\.95"):
        snip.prune(model, batch, sparsity=0.5, loss_fn=loss, scope={"first": 95})
