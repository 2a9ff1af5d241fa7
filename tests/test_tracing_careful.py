"""Tracing leaves a model as it was, and refuses what a graph would not repeat."""

import copy
import io
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snip
from snip.distributed.wrappers import unwrap
from snip.engine.kernels.library import available
from snip.masks import Masks
from snip.network.graph import UntraceableError, trace

X = torch.randn(4, 6)
needs_kernels = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


class Two(nn.Module):
    """Two layers, and everything that the forwards below write to."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("scale", torch.ones(6))
        self.history: list = []
        self.kept: dict = {"last": []}
        self.calls = 0
        self.plain = torch.zeros(2)


class Habit(Two):
    """A network with one habit."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x):
        h = self.a(x)
        if self.kind == "attribute":
            self.last = h
        elif self.kind == "counter":
            self.calls += 1
        elif self.kind == "list":
            self.history.append(h)
        elif self.kind == "nested":
            self.kept["last"].append(h)
        elif self.kind == "layer":
            self.a.seen = h
        elif self.kind == "buffer +=":
            self.steps += 1
        elif self.kind == "buffer by .data":
            self.steps.data.add_(1)
        elif self.kind == "buffer assigned":
            self.steps = torch.ones(())
        elif self.kind == "buffer from h":
            self.scale.copy_(h[0])
        elif self.kind == "plain tensor":
            self.plain.add_(1)
        return self.b(h)


WRITERS = (
    *("attribute", "counter", "list", "nested", "layer", "buffer +=", "buffer by .data"),
    *("buffer assigned", "buffer from h", "plain tensor"),
)


def masked(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    chosen = {n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}
    Masks(chosen).apply(model)
    return model


def accelerated(model: nn.Module, batch: torch.Tensor) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        return snip.accelerate(masked(model), batch, ways={})


def found_in(model: nn.Module) -> bytes:
    """Everything a model consists of; a proxy of torch.fx cannot be pickled."""
    parts = [(name, {**vars(m)}) for name, m in model.named_modules()]
    names = [(name, sorted(attributes)) for name, attributes in parts]
    return pickle.dumps((names, model.state_dict(), model.history, model.kept, model.calls))


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("reader", ["trace", "shrink", "accelerate"])
def test_a_model_is_left_as_it_was(kind, reader):
    model = masked(Habit(kind))
    before, plain = found_in(model), model.plain.clone()
    drawn = torch.get_rng_state(), random.getstate(), pickle.dumps(np.random.get_state())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        if reader == "trace":
            trace(model, X)
        elif reader == "shrink":
            snip.shrink(model, X)
        elif available():
            snip.accelerate(model, X)
    assert found_in(model) == before
    assert torch.equal(model.plain, plain)
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), pickle.dumps(np.random.get_state())) == drawn[1:]


@pytest.mark.parametrize("kind", WRITERS)
def test_a_forward_that_writes_is_not_converted(kind):
    with pytest.raises(UntraceableError, match=r"writes|cannot assign"):
        trace(Habit(kind), X, both_modes=True)


@needs_kernels
def test_a_forward_that_writes_goes_on_writing():
    fast = accelerated(Habit("counter"), X)
    fast(X), fast(X)
    assert fast.calls == 2
    fast = accelerated(Habit("attribute"), X)
    fast(X)
    torch.testing.assert_close(fast.last, fast.a(X))
    torch.save(fast, io.BytesIO())


def _drawing(kind: str):
    draw = {
        "torch": lambda: torch.rand(()).item(),
        "python": random.random,
        "numpy": np.random.rand,
    }[kind]

    class Drawing(Two):
        def forward(self, x):
            return self.b(x + self.a(x)) if draw() < 0.5 else self.b(x)

    return Drawing()


@pytest.mark.parametrize("kind", ["torch", "python", "numpy"])
def test_a_random_branch_is_refused(kind):
    for both_modes in (False, True):
        with pytest.raises(UntraceableError, match="random"):
            trace(_drawing(kind), X, both_modes=both_modes)


class Shifted(Two):
    """Makes a tensor in its forward."""

    def forward(self, x):
        shift = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1, 0.0])
        return self.b(F.relu(self.a(x - shift) + shift))


def test_constants_are_compared_by_value():
    class Moded(Two):
        def forward(self, x):
            return self.b(x - torch.full((6,), float(self.training)))

    assert len(trace(Shifted(), X, both_modes=True).constants) == 1
    with pytest.raises(UntraceableError, match="something else in training"):
        trace(Moded(), X, both_modes=True)


@needs_kernels
def test_a_converted_network_has_its_constants_in_copies_and_pickles():
    fast = accelerated(Shifted(), X)
    assert "linear_chain" in fast.snip_conversion.source or "on_col" in fast.snip_conversion.source
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    twins = [copy.deepcopy(fast), torch.load(file, weights_only=False)]
    expected = masked(Shifted())
    expected.load_state_dict(snip.densify(fast).state_dict())
    for network in (fast, *twins):
        torch.testing.assert_close(network(X), expected(X), rtol=1e-4, atol=1e-5)


@needs_kernels
def test_what_is_computed_from_a_buffer_follows_it():
    class Scaled(Two):
        def forward(self, x):
            return self.b(self.a(x) * (self.scale[None] * 2))

    model = Scaled()
    fast = accelerated(model, X)
    assert "on_columns" in fast.snip_conversion.source
    for network in (model, fast):
        network.scale.fill_(3.0)
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


def _overwriting(kind: str):
    class Overwriting(Two):
        def forward(self, x):
            h = self.a(x)
            if kind == "view before":
                v, g = h.view(-1, 6), F.relu(h, inplace=True)
            elif kind == "view of a view":
                v, g = h.view(-1, 6)[:, :], h.flatten(1).relu_()
            elif kind == "part of a tuple":
                v, g = h.chunk(1)[0], h.mul_(2.0).tanh_()
            elif kind == "unknown view":
                v, g = h.ravel().view(-1, 6), h.relu_()
            elif kind == "out":
                v, g = h, torch.mul(h, 2.0, out=h)
            elif kind == "parameter":
                v, g = h, self.a.bias.data.zero_() + h
            else:  # only a size is read again
                n = h.shape[0]
                g = h.relu_()
                v = g.view(n, 6)
            return self.b(v) + self.b(g)

    return Overwriting()


@pytest.mark.parametrize(
    "kind",
    ["view before", "view of a view", "part of a tuple", "unknown view", "out", "parameter"],
)
def test_all_names_of_one_memory_are_looked_at(kind):
    model = _overwriting(kind)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(UntraceableError, match="writes"):
        trace(model, X, both_modes=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_size_may_be_read_after_its_tensor_is_overwritten():
    trace(_overwriting("size"), X, both_modes=True)


def test_only_modules_that_torch_compiled_are_unwrapped():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(2, 2)

    own = Own()
    assert unwrap(own) is own
    assert unwrap(torch.compile(own)) is own
