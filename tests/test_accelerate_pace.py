"""What the timing of whole networks counts, and what a user is told about it."""

import copy
import math
import warnings

import pytest
import torch
from accelerate_parts import pair
from expected_warnings import expects
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import snip
from snip.common.timing import best_times
from snip.engine import pace
from snip.engine.kernels.library import available

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


@pytest.fixture(autouse=True)
def _own_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("SNIP_CACHE", str(tmp_path))


def conv_net() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    snip.prune(model, batch(), sparsity=0.5)
    return model


def batch():
    return torch.randn(5, 2, 4, 4), torch.tensor([0, 1, 2, 1, 0])


class Written(TorchDispatchMode):
    """Counts the numbers that are added to in place: what a step of SGD does to weights."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add_.Tensor:
            self.count += args[0].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("training", [True, False])
def test_a_training_step_has_an_optimiser_and_masks_to_hold(monkeypatch, training):
    model = conv_net()
    fast = snip.accelerate(model, batch(), ways={})
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    written, held = {}, []

    def once(works, **_settings):
        for name, work in works.items():
            with Written() as counting:
                work()
            written[name] = counting.count
        return dict.fromkeys(works, 1.0)

    monkeypatch.setattr(pace, "best_times", once)
    monkeypatch.setattr(pace, "rezero", lambda network: held.append(network))
    model.train(training), fast.train(training)
    pace.step_seconds(model, fast, lambda _network: lambda: None)
    sizes = {"dense": model, "sparse": fast}
    expected = {name: sum(p.numel() for p in net.parameters()) for name, net in sizes.items()}
    assert written == (expected if training else {"dense": 0, "sparse": 0})
    assert held == ([model, fast] if training else [])
    assert all(torch.equal(p, weights[name]) for name, p in model.named_parameters())


def told(monkeypatch, model, seconds, last):
    """What accelerate says if these are the seconds dense, sparse and in channels last."""
    times = dict(zip(("dense", "sparse"), seconds, strict=True))
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: times)
    monkeypatch.setattr("snip.engine.accelerate.channels_last_seconds", lambda *_: last)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = snip.accelerate(model, batch())
    return found, " ".join(str(w.message) for w in caught if w.category is snip.SnipWarning)


def test_a_network_that_is_faster_in_channels_last_is_told_so(monkeypatch):
    model = conv_net()
    found, words = told(monkeypatch, model, (0.010, 0.020), 0.007)
    assert found is model
    assert "takes 7 ms" in words
    assert "less than the 10 ms" in words
    assert "model.to(memory_format=torch.channels_last)" in words
    assert "channels" not in told(monkeypatch, model, (0.010, 0.020), 0.0099)[1]
    found, words = told(monkeypatch, model, (0.010, 0.008), 0.007)
    assert found is not model
    assert "less than the 8 ms" in words
    assert told(monkeypatch, conv_net(), (0.010, 0.004), 0.001)[1] == ""  # not even looked at


def test_channels_last_is_timed_on_a_copy(monkeypatch):
    given = []

    def once(works, **settings):
        given.append(settings["most"])
        return {name: (work(), 1.0)[1] for name, work in works.items()}

    monkeypatch.setattr(pace, "best_times", once)
    model = conv_net()
    formats = []

    def work_of(network):
        weight = network[0].weight
        return lambda: formats.append(weight.is_contiguous(memory_format=torch.channels_last))

    assert pace.channels_last_seconds(model, work_of) == 1.0
    assert formats == [True]
    assert model[0].weight.is_contiguous()
    assert pace.channels_last_seconds(nn.Linear(2, 2), work_of) == math.inf
    already = model.to(memory_format=torch.channels_last)
    assert pace.channels_last_seconds(already, work_of) == math.inf


class Views(nn.Module):
    """Takes its own activations for contiguous, as many networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.conv(x).relu().view(len(x), -1))


@expects("untraced")
def test_a_network_that_does_not_run_in_channels_last_is_accelerated_all_the_same(monkeypatch):
    model = Views()
    snip.prune(model, batch(), sparsity=0.5)
    with pytest.raises(RuntimeError, match="view"):
        copy.deepcopy(model).to(memory_format=torch.channels_last)(batch()[0])
    times = {"dense": 1.0, "sparse": 0.9}
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: times)
    assert snip.accelerate(model, batch()) is not model


def test_turns_end_with_the_time_or_with_their_number():
    calls = []
    best_times({"": lambda: calls.append(0)}, rounds=2, seconds=60, most=5)
    assert len(calls) == 6  # one turn warms up
    shown = []

    def show(turns):
        for turn in turns:
            shown.append(turn)
            yield turn

    best_times({"": lambda: None}, rounds=2, most=5, shown=show)
    assert shown == [0, 1, 2, 3]  # the last of them is not taken any more


def test_timings_are_remembered(tmp_path, monkeypatch):
    faster = {"dense": 2.0, "sparse": 1.0}
    monkeypatch.setattr("snip.engine.accelerate.step_seconds", lambda *_: faster)
    dense, _, batch = pair("vgg-like", 2)
    fast = snip.accelerate(dense, batch)
    (file,) = tmp_path.glob("timings-*.json")
    before = file.read_text()
    again = snip.accelerate(dense, batch)
    assert file.read_text() == before
    assert again.snip_conversion.source == fast.snip_conversion.source
