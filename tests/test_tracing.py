"""Tracing a forward for the arguments of one call, and what is refused for training."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import snip
from snip.engine.kernels.library import available
from snip.masks import Masks
from snip.network.graph import UntraceableError, facts, trace

X = torch.randn(4, 3)


class Options(nn.Module):
    """Decides by what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.flat, self.last = nn.Linear(3, 5), nn.Flatten(), nn.Linear(5, 2)
        self.drop = nn.Dropout(inplace=True)

    def forward(self, x, mask=None, *more, scale=1.0, sizes=(1, 2)):
        y = self.first(x)
        y = y if mask is None else y * mask
        for other in more:
            y = y + other
        return self.last(y * scale if scale != 1 else y) * sizes[0]


def targets(batch) -> list[str]:
    graph = trace(Options(), batch).graph
    return [getattr(n.target, "__name__", str(n.target)) for n in graph.nodes]


def test_what_is_not_given_or_no_tensor_is_part_of_the_graph():
    assert targets(X) == ["x", "first", "last", "mul", "output"]
    assert targets({"x": X, "scale": 2.0}) == ["x", "first", "mul", "last", "mul", "output"]
    given = (X, torch.ones(5), torch.ones(5), torch.ones(5))
    found = trace(Options(), given)
    assert len(found.values) == 4
    assert targets(given)[:4] == ["x", "mask", "more_0", "more_1"]


def test_what_the_forward_raises_is_told():
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(UntraceableError, match=r"depends on values or sizes.*x\.sum\(\) > 0"):
        trace(Branches(), X)
    with pytest.raises(UntraceableError, match="TypeError"):
        trace(Options(), {"no_such": X})


class Loops(nn.Module):
    def forward(self, x):
        for i in range(x.shape[0]):
            x = x + i
        return x


class Makes(nn.Module):
    def forward(self, x):
        return x + torch.ones(x.shape[0], 1)


class Packs(nn.Module):
    def forward(self, x):
        return pack_padded_sequence(x, x[0])


class Checks(nn.Module):
    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            raise ValueError("x is no tensor")
        return x


@pytest.mark.parametrize(
    ("network", "line"), [(Loops, "in range(x.shape[0])"), (Makes, "ones("), (Packs, "pack_padded")]
)
def test_the_line_that_depends_on_values_or_sizes_is_told(network, line):
    """In plain words: what Python says of it speaks of a stand-in that no user knows."""
    with pytest.raises(UntraceableError) as caught:
        trace(network(), X)
    said = str(caught.value)
    assert said.startswith("its forward depends on values or sizes of its input, at ")
    assert line in said
    assert "Proxy" not in said
    assert "argument" not in said
    assert "__" not in said


def test_an_error_of_the_forward_itself_is_told_in_its_own_words():
    with pytest.raises(UntraceableError, match="ValueError: x is no tensor"):
        trace(Checks(), X)


def test_shapes_are_noted():
    graph = trace(Options(), X, both_modes=True).graph
    shapes = [facts(n).shape for n in graph.nodes if n.op == "call_module"]
    assert shapes == [(4, 5), (4, 2)]


def _written(kind):
    class Written(Options):
        def forward(self, x):
            y = self.first(x)
            if kind == "no_grad":
                with torch.no_grad():
                    return self.last(y)
            if kind == "mode":
                return self.last(y) if self.training else y
            z = {
                "positional": lambda: F.leaky_relu(y, 0.1, True),
                "named": lambda: F.elu(y, inplace=True),
                "module": lambda: self.flat(y).relu_(),
                "train mode only": lambda: self.drop(y),
                "cast": lambda: y.float().tanh_(),
                "copy": lambda: y.clone().tanh_(),
            }[kind]()
            return self.last(z) + self.last(y)

    return Written()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no_grad", "switches gradients"),
        ("mode", "something else in training"),
        ("positional", "overwrites"),
        ("named", "overwrites"),
        ("module", "overwrites"),
        ("train mode only", "overwrites"),
        ("cast", "overwrites"),
    ],
)
def test_what_is_refused_for_training(kind, words):
    with pytest.raises(UntraceableError, match=words):
        trace(_written(kind), X, both_modes=True)
    trace(_written("copy"), X, both_modes=True)


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
def test_an_accelerated_network_takes_its_other_arguments_too(recwarn):
    torch.manual_seed(0)
    model = Options()
    Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    fast = snip.accelerate(model, X, ways={})
    assert not [w for w in recwarn if "traced" in str(w.message)]
    assert (
        "on_columns" in fast.snip_conversion.source or "linear_chain" in fast.snip_conversion.source
    )
    mask = torch.rand(5)
    for args, kwargs in (((X,), {}), ((X, mask), {}), ((), {"x": X}), ((X,), {"scale": 3.0})):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                found, expected = fast(*args, **kwargs), model(*args, **kwargs)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
