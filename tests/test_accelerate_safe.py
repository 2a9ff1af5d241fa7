"""`accelerate` takes a batch as the model is called, and never hands out what is wrong or slow."""

import copy
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from user_networks import Blocks

import snip
from snip.anatomy.accelerated import Accelerated
from snip.engine import pace
from snip.engine.choice import Choice, choose, choose_again
from snip.engine.kernels.library import available
from snip.engine.layers.packing import PackedModule

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")
LABELS = torch.tensor([0, 1, 2, 1, 0])
KEYWORDS = {"x": torch.ones(5, 6), "scale": torch.ones(5)}  # of Calls, which is not traced so


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


def timed_as(monkeypatch, *seconds):
    """Let the next timings of whole networks be these (dense, sparse) pairs, and no others."""
    left = [dict(zip(("dense", "sparse"), pair, strict=True)) for pair in seconds]
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: left.pop(0))
    return left


def masked(model: nn.Module) -> nn.Module:
    names = snip.prunable_parameters(model)
    snip.Masks({n: torch.rand(p.shape) < 0.5 for n, p in names.items()}).apply(model)
    return model


def mlp() -> nn.Module:
    return masked(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))


def quietly(function, *args, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        return function(*args, **settings)


# ---- a batch, as the model is called ----


class Calls(nn.Module):
    """Notes with how many arguments it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, scale, shift=None):
        x = self.a(x) * scale[:, None]
        return {"y": self.b(x if shift is None else x + shift[:, None])}


@pytest.mark.parametrize(
    "batch",
    [
        (torch.randn(5, 6), torch.rand(5)),
        (torch.randn(5, 6), torch.rand(5), torch.rand(5)),
        (torch.randn(5, 6), torch.rand(5), torch.rand(5), LABELS),
        [torch.randn(5, 6), torch.rand(5)],
        {"x": torch.randn(5, 6), "scale": torch.rand(5)},
    ],
)
def test_a_batch_is_given_to_the_model_as_the_user_calls_it(batch):
    model = masked(Calls())
    fast = quietly(snip.accelerate, model, batch, ways={})
    assert isinstance(fast.a, PackedModule)
    x, scale = torch.randn(7, 6), torch.rand(7)
    torch.testing.assert_close(fast(x, scale)["y"], model(x, scale)["y"], rtol=1e-4, atol=1e-5)


def test_targets_are_not_taken_for_an_optional_argument():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x, weight=None):
            assert weight is None
            return self.b(self.a(x))

    fast = snip.accelerate(masked(Masked()), (torch.randn(5, 6), LABELS), ways={})
    assert fast.snip_conversion.run is not None  # traced, for the inputs alone


@pytest.mark.parametrize(
    ("build", "batch", "words"),
    [
        (mlp, torch.randn(5, 7), "mat1"),
        (mlp, (torch.randn(5, 7), LABELS), "mat1"),
        (mlp, {"pixels": torch.randn(5, 6)}, "pixels"),
        (lambda: masked(Calls()), (torch.randn(5, 7), torch.rand(5)), "mat1"),
        (lambda: masked(Calls()), torch.randn(5, 6), "scale"),
    ],
)
def test_a_batch_that_the_model_does_not_take_is_refused_before_anything_else(build, batch, words):
    model = build()
    snip.release(model)
    with pytest.raises(snip.InputError, match=f"does not run on this batch .*{words}"):
        snip.accelerate(model, batch)
    assert snip.held_masks(model) is None


# ---- the proof ----


class Detaches(nn.Module):
    """Computes the same with layers of another kind, and has other gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first(x) if x.sum() > -1e9 else x
        return self.second(x if type(self.first) is nn.Linear else x.detach()).softmax(1)


def test_gradients_are_compared_too():
    model = masked(Detaches())
    with pytest.warns(snip.SnipWarning, match=r"gradient of first\.weight would differ"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model


class DropsAndTrainsOtherwise(Detaches):
    """Random in training, so that outputs could not be compared if anything were dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        x = self.dropout(self.first(x) if x.sum() > -1e9 else x)
        other = self.training and type(self.first) is not nn.Linear
        return self.second(2 * x if other else x)


def test_networks_with_dropout_are_compared_in_training_too():
    model = masked(DropsAndTrainsOtherwise())
    with pytest.warns(snip.SnipWarning, match="outputs would differ"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model
    assert model.dropout.p == 0.3


class TrainsOtherwise(Detaches):
    def forward(self, x):
        if self.training and type(self.first) is not nn.Linear:
            raise RuntimeError("no such layer in training")
        return self.second(self.first(x) if x.sum() > -1e9 else x)


@pytest.mark.parametrize("masks_of", [("head.weight",), ("table.weight", "head.weight")])
def test_sparse_gradients_are_compared_too(masks_of):
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(11, 6, sparse=True), nn.Linear(6, 3)

        def forward(self, words):
            return self.head(self.table(words).mean(1))

    model, words = Words(), torch.randint(0, 11, (5, 4))
    masks = {n: torch.rand_like(model.get_parameter(n)) > 0.5 for n in masks_of}
    snip.Masks(masks).apply(model)
    fast = snip.accelerate(model, words, ways={})
    assert isinstance(fast.head, PackedModule)
    fast(words).sum().backward()
    model(words).sum().backward()
    assert fast.table.weight.grad.is_sparse
    torch.testing.assert_close(
        fast.table.weight.grad.to_dense(), model.table.weight.grad.to_dense()
    )


def test_outputs_that_cannot_be_compared_leave_the_network_dense():
    class Sparse(nn.Linear):
        def forward(self, x):
            return super().forward(x).to_sparse()

    model = masked(nn.Sequential(nn.Linear(6, 8), Sparse(8, 3)))
    with pytest.warns(snip.SnipWarning, match="runs dense"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model


def test_training_is_tried_too():
    model = masked(TrainsOtherwise()).eval()
    with pytest.warns(snip.SnipWarning, match="no such layer in training"):
        assert snip.accelerate(model, torch.randn(5, 6), ways={}) is model


def test_a_network_with_dropout_is_accelerated():
    model = masked(nn.Sequential(nn.Linear(6, 40), nn.Dropout(), nn.Linear(40, 3)))
    assert isinstance(snip.accelerate(model, torch.randn(5, 6), ways={}), Accelerated)


def test_asking_a_weight_for_its_type_does_not_keep_it_whole():
    class Casts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(self.a(x).to(self.b.weight.dtype)) * len(self.a.weight)

    model, x = masked(Casts()), torch.randn(5, 6)
    fast = quietly(snip.accelerate, model, x, ways={})
    assert type(fast.a) is nn.Linear  # its length is that of the ordinary weight
    assert isinstance(fast.b, PackedModule)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


# ---- never slower ----


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


# ---- zeros that nobody holds, and an optimiser that trains nothing ----


def test_a_pruned_model_that_was_loaded_is_accelerated():
    pruned, x = mlp(), torch.randn(5, 6)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model.load_state_dict(pruned.state_dict())
    with pytest.warns(snip.SnipWarning, match="held at zero from now on"):
        fast = snip.accelerate(model, x, ways={})
    assert snip.held_masks(model) == snip.held_masks(pruned)
    assert snip.held_masks(snip.densify(fast)) == snip.held_masks(pruned)
    torch.testing.assert_close(fast(x), pruned(x), rtol=1e-4, atol=1e-5)


def test_a_model_with_hardly_a_zero_is_not_pruned():
    model = nn.Sequential(nn.Linear(6, 80), nn.ReLU(), nn.Linear(80, 3))
    nn.init.zeros_(model[2].bias)
    with pytest.raises(snip.InputError, match=r"not pruned: .* snip\.prune.* load"):
        snip.accelerate(model, torch.randn(5, 6))
    assert snip.held_masks(model) is None


def test_an_optimiser_from_before_says_that_it_trains_nothing():
    model, x = mlp(), torch.randn(5, 6)
    old = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).sum().backward()
    old.step()
    old.zero_grad()
    fast = snip.accelerate(model, x, ways={})
    fast(x).sum().backward()
    with pytest.warns(snip.SnipWarning, match="SGD trains nothing") as caught:
        old.step()
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old.step()  # said once
        torch.optim.SGD(fast.parameters(), lr=0.1).step()
        model(x).sum().backward()  # the dense model may train on
        old.step()


# ---- a wrong width is an error in torch's words ----


class Steps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, 7, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


@pytest.mark.parametrize(
    ("build", "right", "wrong"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (5, 6), (5, 7)),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), (5, 6), (2, 4, 12)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)),
         (5, 3, 4, 4), (5, 1, 4, 4)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)),
         (5, 3, 4, 4), (5, 3, 2, 2)),
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)),
         (5, 3, 4, 4), (5, 3, 5, 5)),
        (Steps, (5, 3, 5), (5, 3, 6)),
    ],
)  # fmt: skip
def test_a_wrong_width_is_told_as_torch_tells_it(build, right, wrong):
    model = masked(build())
    fast = snip.accelerate(model, torch.randn(right), ways={})
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            with pytest.raises(RuntimeError) as expected:
                model(torch.randn(wrong))
            with pytest.raises(RuntimeError) as found:
                fast(torch.randn(wrong))
        assert str(found.value) == str(expected.value)
