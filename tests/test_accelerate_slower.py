"""`accelerate` never hands out what is slower, and the training loop decides by the same timing."""

import copy
import warnings
import weakref

import pytest
import torch
from accelerate_parts import KEYWORDS, LABELS, Calls, masked, mlp, quietly, timed_as
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from user_networks import Blocks

import snip
from snip.engine import pace
from snip.engine.choice import Choice, choose, choose_again
from snip.engine.fused.straight import straight_of
from snip.engine.kernels.library import available
from snip.network.parameters import Accelerated

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


@pytest.mark.parametrize(
    ("dense", "sparse", "slower"), [(1.0, 0.5, False), (1.0, 1.01, False), (1.0, 1.1, True)]
)
def test_slower_is_what_is_slower_beyond_noise(dense, sparse, slower):
    assert pace.is_slower({"dense": dense, "sparse": sparse}) == slower


def test_a_network_that_would_be_slower_comes_back_with_both_times(monkeypatch):
    model, batch = mlp(), (torch.randn(5, 6), LABELS)
    timed_as(monkeypatch, (0.010, 0.0255), (0.010, 0.0255))
    with pytest.warns(snip.SnipWarning, match=r"runs dense: .* 25\.5 ms .* 10 ms"):
        assert snip.accelerate(model, batch) is model
    assert snip.held_masks(model) is not None


def test_masks_that_were_given_are_held_by_a_network_that_comes_back(monkeypatch):
    model = mlp()
    masks = snip.held_masks(model)
    snip.release(model)
    timed_as(monkeypatch, (1.0, 2.0), (1.0, 2.0))
    assert quietly(snip.accelerate, model, torch.randn(5, 6), masks=masks) is model
    assert snip.held_masks(model) == masks


def test_layers_that_do_not_pay_run_dense_in_a_second_try(monkeypatch):
    left = timed_as(monkeypatch, (1.0, 2.0), (1.0, 0.5))
    monkeypatch.setattr("snip.engine.sparse_copy.losing_layers", lambda *_: ["0"])
    fast = snip.accelerate(mlp(), torch.randn(5, 6))
    assert (fast[0].way, fast[2].way, left) == ("dense", "sparse", [])


@pytest.mark.parametrize(
    ("as_found", "in_one_call", "way"), [(0.9, 0.5, "sparse"), (0.5, 0.9, "dense")]
)
def test_a_line_of_sparse_layers_is_tried_even_where_one_is_faster_dense(
    monkeypatch, as_found, in_one_call, way
):
    left = timed_as(monkeypatch, (1.0, as_found), (1.0, in_one_call))
    monkeypatch.setattr("snip.engine.sparse_copy.fastest_ways", lambda *_, **__: {"0": "dense"})
    fast = snip.accelerate(mlp(), torch.randn(5, 6))
    assert (fast[0].way, fast[2].way, left) == (way, "sparse", [])
    assert (straight_of(fast) is not None) == (way == "sparse")


def test_a_network_that_is_no_line_is_tried_once(monkeypatch):
    left = timed_as(monkeypatch, (1.0, 0.9))
    monkeypatch.setattr("snip.engine.sparse_copy.fastest_ways", lambda *_, **__: {"embed": "dense"})
    fast = snip.accelerate(masked(Blocks()), torch.randn(9, 2, 5, 6))
    assert (fast.embed.way, left) == ("dense", [])


def test_ways_that_are_given_are_not_timed(monkeypatch):
    timed_as(monkeypatch)
    assert isinstance(snip.accelerate(mlp(), torch.randn(5, 6), ways={}), Accelerated)


@pytest.mark.parametrize(
    ("build", "batch"),
    [(mlp, torch.randn(5, 6)), (lambda: masked(Calls()), KEYWORDS)],
)
def test_processes_that_train_together_do_not_decide_apart(monkeypatch, build, batch):
    timed_as(monkeypatch)
    for layers_timed in ("fastest_ways", "losing_layers"):
        monkeypatch.setattr(f"snip.engine.sparse_copy.{layers_timed}", None)  # not to be called
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        assert isinstance(quietly(snip.accelerate, build(), batch), Accelerated)
    finally:
        torch.distributed.destroy_process_group()


def test_layers_of_an_untraced_network_are_timed_once(monkeypatch):
    asked = []
    monkeypatch.setattr("snip.engine.sparse_copy.losing_layers", lambda *a: asked.append(a) or [])
    timed_as(monkeypatch, (1.0, 2.0))
    model = masked(Calls())
    assert quietly(snip.accelerate, model, KEYWORDS) is model
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("sparse", "sentence"), [(2.0, "Calls runs dense"), (0.5, "Calls cannot be traced")]
)
def test_one_warning_says_how_a_network_runs(monkeypatch, sparse, sentence):
    timed_as(monkeypatch, (1.0, sparse))
    with pytest.warns(snip.SnipWarning) as caught:
        snip.accelerate(masked(Calls()), KEYWORDS)
    assert len(caught) == 1
    assert str(caught[0].message).startswith(sentence)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("given", [True, False])
def test_a_warning_that_is_an_error_changes_nothing(monkeypatch, given):
    model = mlp()
    masks = snip.held_masks(model)
    snip.release(model)
    timed_as(monkeypatch, (1.0, 2.0), (1.0, 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(snip.SnipWarning):
            snip.accelerate(model, torch.randn(5, 6), masks=masks if given else None)
    assert snip.held_masks(model) is None


def test_timing_leaves_no_trace(monkeypatch):
    model, x = masked(Blocks()), torch.randn(9, 2, 5, 6)
    fast = snip.accelerate(model, x, ways={})
    before, drawn = copy.deepcopy((model.state_dict(), fast.state_dict())), torch.get_rng_state()
    for training in (True, False):
        model.train(training), fast.train(training)
        found = pace.step_seconds(model, fast, pace.step_of(x, training=training))
        assert found.keys() == {"dense", "sparse"}
        for slower, losing in ((True, ["conv", "embed", "rnn"]), (False, [])):
            monkeypatch.setattr(pace, "is_slower", lambda _, slower=slower: slower)
            assert pace.losing_layers(model, fast, ["conv", "embed", "rnn"], x) == losing
        assert model.training == fast.training == training
    for network, state in zip((model, fast), before, strict=True):
        assert all(p.grad is None for p in network.parameters())
        assert all(torch.equal(value, state[k]) for k, value in network.state_dict().items())
        assert not any(module._forward_pre_hooks for module in network.modules())
    assert torch.equal(torch.get_rng_state(), drawn)


class WritesIntoItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach().clone())
        return self.layer(x.sub_(0.5))


@pytest.mark.parametrize("training", [True, False])
def test_a_forward_that_writes_into_its_input_is_timed_on_the_same_numbers(training):
    model, x = masked(WritesIntoItsInput()).train(training), torch.randn(5, 6)
    before = x.clone()
    work = pace.step_of(x, training=training)(model)
    for _ in range(3):
        work()
    assert len(model.seen) == 3
    assert all(torch.equal(seen, before) for seen in [*model.seen, x])
    snip.accelerate(model, x)
    assert torch.equal(x, before)


def test_what_a_layer_was_timed_on_is_not_kept(monkeypatch):
    step_of, alive = pace.step_of, []

    def noted(inputs, **settings):
        assert all(given() is None for given in alive[:-1])  # the last is let go when this returns
        alive.append(weakref.ref(inputs[0]))
        return step_of(inputs, **settings)

    monkeypatch.setattr(pace, "step_of", noted)
    model = masked(nn.Sequential(*(nn.Linear(6, 6) for _ in range(4))))
    pace.losing_layers(model, copy.deepcopy(model), ["0", "1", "2", "3"], torch.randn(5, 6))
    assert len(alive) == 4


def test_a_layer_that_fails_alone_is_a_losing_one():
    dense, sparse = mlp(), nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 3))
    assert "0" in pace.losing_layers(dense, sparse, ["0"], torch.randn(5, 6))


# ---- the training loop's engine ----


@pytest.mark.parametrize(("seconds", "engine"), [((1.0, 0.5), "sparse"), ((1.0, 2.0), "dense")])
def test_auto_decides_by_the_same_timing(monkeypatch, seconds, engine):
    model, batch = mlp(), (torch.randn(5, 6), LABELS)
    timed_as(monkeypatch, seconds, seconds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network, choice = choose(model.eval(), batch, "auto")
    assert (choice.engine, choice.step_seconds["dense"]) == (engine, 1.0)
    assert isinstance(network, Accelerated) == (engine == "sparse")
    assert not model.training
    timed_as(monkeypatch)  # a resumed run is not timed again
    assert type(choose_again(model, batch, Choice.from_dict(choice.to_dict()))) is type(network)


def test_a_wrapped_model_that_stays_dense_is_recorded_as_dense(monkeypatch):
    model = nn.DataParallel(mlp())
    timed_as(monkeypatch, (1.0, 2.0), (1.0, 2.0))
    network, choice = choose(model, (torch.randn(5, 6), LABELS), "auto")
    assert (network, choice.engine) == (model, "dense")


def test_layers_that_lose_run_dense_and_again_when_a_run_resumes(monkeypatch):
    model, batch = masked(Blocks()), (torch.randn(9, 2, 5, 6), torch.zeros(9).long())
    timed_as(monkeypatch, (1.0, 2.0), (1.0, 0.5))
    monkeypatch.setattr("snip.engine.sparse_copy.fastest_ways", lambda *_, **__: {})
    monkeypatch.setattr("snip.engine.sparse_copy.losing_layers", lambda *_: ["rnn", "embed"])
    network, choice = choose(model, batch, "auto")
    assert choice.ways == {"rnn": "dense", "embed": "dense"}
    again = choose_again(model, batch, choice)
    for fast in (network, again):
        assert fast.rnn.way == fast.embed.way == "dense"
    assert torch.equal(again(batch[0]), network(batch[0]))


def test_a_run_that_began_sparse_does_not_go_on_dense(monkeypatch):
    model, batch = mlp(), (torch.randn(5, 6), LABELS)
    network, choice = choose(model, batch, "sparse")
    assert isinstance(network, Accelerated)
    monkeypatch.setattr("snip.engine.accelerate.available", lambda: False)
    monkeypatch.setattr("snip.engine.accelerate.reason", lambda: "no compiler was found")
    words = r'began sparse .*no compiler was found\): .*resume=False.*engine="dense"'
    with pytest.raises(snip.InputError, match=words):
        choose_again(model, batch, choice)
