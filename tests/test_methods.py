"""Every method of the table keeps the same promises; each also agrees with its definition."""

import copy
import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import KINDS, make
from torch import nn

import snip
from snip.methods import METHODS, AtInitialisation, Needs
from snip.methods.kinds import DATA, NOTHING, exponential, one_shot
from snip.network.network import prunable_parameters
from snip.runs import RunConfig

AT_INITIALISATION = {n: m for n, m in METHODS.items() if isinstance(m, AtInitialisation)}
BLIND = [name for name, method in AT_INITIALISATION.items() if method.reads == NOTHING]
# Methods in rounds, with fewer of them: what they promise here does not depend on the number.
QUICK = {
    name: method if method.rounds is one_shot else replace(method, rounds=exponential(4))
    for name, method in AT_INITIALISATION.items()
}
ONE_SHOT = [name for name, method in AT_INITIALISATION.items() if method.rounds is one_shot]


@pytest.mark.parametrize("method", AT_INITIALISATION)
def test_a_method_scores_every_connection_and_leaves_the_model_as_found(method):
    model, batch = make("residual")
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    scores = METHODS[method].score(model, batch)
    weights = prunable_parameters(model)
    assert list(scores) == list(weights)
    for name, score in scores.items():
        assert score.shape == weights[name].shape
        assert torch.isfinite(score).all()
        assert (score >= 0).all() or method == "grasp"  # whose scores have a sign
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random) or method in BLIND  # which draw from it


@pytest.mark.parametrize("method", ONE_SHOT)
def test_prune_keeps_the_highest_scores_of_any_method(method):
    model, batch = make("mlp")
    scoring = snip.Scoring(reduction="abs_of_sum" if method == "grasp" else "sum_of_abs")
    halves = [(batch[0][:2], batch[1][:2]), (batch[0][2:], batch[1][2:])]
    torch.manual_seed(1)
    scores = METHODS[method].score(model, halves, scoring=scoring)
    torch.manual_seed(1)
    masks = snip.prune(model, halves, sparsity=0.6, method=method, scoring=scoring)
    assert masks == snip.select(scores, sparsity=0.6, scope=METHODS[method].scope or "global")
    assert (masks.provenance.method, masks.provenance.rounds) == (method, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", AT_INITIALISATION)
@expects("left out", "losses")
def test_any_method_prunes_any_kind_of_network_exactly_and_changes_nothing_else(method, kind):
    model, batch = make(kind)
    model.eval()
    before = copy.deepcopy(model.state_dict())
    for sparsity in (0.5, 0.9):  # the second prunes further what is pruned already
        masks = snip.prune(model, batch, sparsity=sparsity, method=QUICK[method])
        assert masks.kept == round(masks.total * (1 - sparsity))
    masks.check(model)
    for name, value in model.state_dict().items():
        kept = masks[name] if name in masks else torch.ones_like(value, dtype=torch.bool)
        assert torch.equal(value[kept], before[name][kept])
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", AT_INITIALISATION)
@expects("losses")
def test_a_seed_repeats_the_masks_of_every_method(method):
    model, batch = make("conv")
    chosen = []
    for twin in (copy.deepcopy(model), model):
        torch.manual_seed(2)
        chosen.append(snip.prune(twin, batch, sparsity=0.7, method=QUICK[method]))
    assert chosen[0] == chosen[1]


@settings(max_examples=20)
@given(
    st.sampled_from(sorted(AT_INITIALISATION)),
    st.floats(0, 0.97),
    st.sampled_from(KINDS),
    st.sampled_from(("global", "layer", "uniform", "erk")),
)
@expects("left out", "losses")
def test_every_method_keeps_exactly_kappa(method, sparsity, kind, scope):
    model, batch = make(kind)
    scope = METHODS[method].scope or scope
    masks = snip.prune(model, batch, sparsity=sparsity, method=QUICK[method], scope=scope)
    assert masks.kept == round(masks.total * (1 - sparsity))


@pytest.mark.parametrize("method", AT_INITIALISATION)
def test_a_model_is_as_found_after_a_method_that_failed(method):
    model, (x, y) = make("residual")
    before = copy.deepcopy(model.state_dict())
    calls = []

    def fails_later(model, batch):
        calls.append(model(batch[0]))
        if len(calls) == (3 if METHODS[method].reads == DATA else 1):
            raise ZeroDivisionError
        return F.cross_entropy(calls[-1], batch[1])

    rounds = [(x[:2], y[:2]), (x[2:], y[2:]), (x, y)]  # so that the third call is in every method
    with pytest.raises(ZeroDivisionError):
        snip.prune(model, rounds, sparsity=0.5, method=QUICK[method], loss_fn=fails_later)
    assert snip.held_masks(model) is None
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("method", AT_INITIALISATION)
@expects("losses")
def test_every_method_honours_params_floors_and_kept_biases(method):
    model, batch = make("conv")

    def prune(**settings):
        return snip.prune(copy.deepcopy(model), batch, method=QUICK[method], **settings)

    assert list(prune(sparsity=0.5, params=lambda n, m, p: "up" in n)) == ["up.weight", "up.bias"]
    weights = ["conv.weight", "up.weight", "head.weight"]
    assert list(prune(sparsity=0.5, biases="keep")) == weights
    if METHODS[method].scope is None:
        floored = prune(sparsity=0.8, floor=3, biases="keep")
        assert all(int(floored[name].sum()) >= 3 for name in weights)


def test_a_method_that_reads_no_data_needs_no_targets():
    model, (inputs, _) = make("mlp")
    for method in ("random", "magnitude", "erk", "synflow"):
        masks = snip.prune(copy.deepcopy(model), inputs, sparsity=0.5, method=QUICK[method])
        assert (masks.provenance.loss, masks.provenance.batches) == (None, 0)
        assert masks.provenance.input_shape == (6,)


def test_a_generator_is_enough_for_a_method_in_rounds():
    model, batch = make("mlp")
    for method in ("force", "synflow", "random", "grasp"):
        one, two = copy.deepcopy(model), copy.deepcopy(model)
        torch.manual_seed(0)
        masks = snip.prune(one, iter([batch, batch]), sparsity=0.7, method=QUICK[method])
        torch.manual_seed(0)
        assert masks == snip.prune(two, [batch, batch], sparsity=0.7, method=QUICK[method])


def test_a_method_with_a_scope_of_its_own_takes_no_other():
    model, batch = make("mlp")
    with pytest.raises(snip.InputError, match="scope is 'layer', but method 'erk' has its own"):
        snip.prune(model, batch, sparsity=0.5, method="erk", scope="layer")
    with pytest.raises(snip.InputError, match="no scope"):
        snip.prune(model, batch, sparsity=0.5, method="erk", budget="flops")
    with pytest.raises(snip.InputError, match="no scope"):
        RunConfig("lenet-300-100", 0.9, method="erk", budget="flops")
    masks = snip.prune(model, batch, sparsity=0.5, method="erk")
    assert masks.provenance.scope == "erk"


def test_what_a_method_needs_is_a_row_of_the_papers_table():
    assert METHODS["snip"].needs == Needs("connection sensitivity")  # none of the five
    for name, method in AT_INITIALISATION.items():
        assert method.needs.prunings == str(len(method.rounds(0.9))), name
        assert not method.needs.pretraining, name
        assert not method.needs.objective, name


def test_the_rivals_needs_are_those_of_table_1():
    rivals = ("lwc", "dns", "lc", "sws", "svd", "obd", "lobs")
    marks = {name: METHODS[name].needs for name in rivals}
    # Criterion, pretraining, prunings, hyper-parameters, augmented objective, architecture.
    assert {name: dataclasses.astuple(needs) for name, needs in marks.items()} == {
        "lwc": ("magnitude", True, "many", True, False, True),
        "dns": ("magnitude", True, "many", True, False, True),
        "lc": ("magnitude", True, "many", True, True, False),
        "sws": ("Bayesian", True, "soft", True, True, False),
        "svd": ("Bayesian", True, "soft", True, True, False),
        "obd": ("Hessian", True, "many", True, False, False),
        "lobs": ("Hessian", True, "many", True, False, True),
    }


def test_the_page_about_methods_has_the_table_of_needs():
    page = (Path(__file__).parent.parent / "docs" / "methods.md").read_text(encoding="utf-8")
    for name, method in METHODS.items():
        cells = [f"`{name}`", *dataclasses.astuple(method.needs)]
        words = {True: "yes", False: "no"}
        row = "| " + " | ".join(words.get(cell, cell) for cell in cells) + " |"
        assert row in page, row


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
