"""The table of operations, and forwards traced for one call: what is refused, and what is kept."""

import copy
import io
import operator
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils.rnn import pack_padded_sequence

import snip
from snip.distributed.wrapped import unwrap
from snip.engine.kernels.library import available
from snip.masks import Masks
from snip.network.graph import UntraceableError, facts, trace
from snip.network.operations import IN_PLACE, OPERATIONS, UNKNOWN, Kind, operation, operation_of
from snip.network.paths import follow

X = torch.randn(4, 6)
needs_kernels = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


def masked(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    return model


def accelerated(model: nn.Module, batch: torch.Tensor) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        return snip.accelerate(masked(model), batch, ways={})


def input_gradients(networks, images) -> list:
    """Gradients of the images, and of the last weight, per network."""
    gradients = []
    for network in networks:
        x = images.clone().requires_grad_()
        network(x).square().sum().backward()
        gradients.append((x.grad, network.third.bias.grad))
    return gradients


# ---- the table of operations ----

POINTWISE = [o for o in OPERATIONS if o.kind is Kind.POINTWISE]
ARGUMENTS = {
    "threshold": (-0.5, -1.0),
    "clamp": (-1.0, 1.0),
    "clip": (-1.0, 1.0),
    "clamp_min": (-1.0,),
    "clamp_max": (1.0,),
}


def function_named(name):
    places = (torch, F, torch.Tensor, operator)
    return next(getattr(place, name) for place in places if hasattr(place, name))


def test_every_name_stands_once_and_means_something():
    names = [o.name for o in OPERATIONS]
    assert len(names) == len(set(names))
    for o in OPERATIONS:
        word = o.name.replace("_", "")
        places = (torch, F, torch.Tensor, torch.linalg, operator)
        spelled = any(hasattr(place, o.name) for place in places)
        assert spelled or word in {kind.lower() for kind in dir(nn)} or o.name == "getattr", o.name


@pytest.mark.parametrize("known", POINTWISE, ids=lambda o: o.name)
def test_what_the_table_says_of_zero_and_of_single_numbers(known):
    function = function_named(known.name)
    call = lambda x: function(x, *ARGUMENTS.get(known.name, ()))  # noqa: E731
    zero = torch.zeros(2, requires_grad=True)
    assert bool((call(zero) == 0).all()) == known.zero_stays
    x = torch.linspace(-0.9, 0.9, 12)
    torch.testing.assert_close(
        call(x).reshape(3, 4), torch.stack([call(row) for row in x.reshape(3, 4)]), equal_nan=True
    )
    if known.on_layouts:  # finite everywhere, and so is the derivative
        wide = torch.tensor([-50.0, -1.0, 0.0, 1.0, 50.0], requires_grad=True)
        out = call(wide)
        assert out.isfinite().all()
        if out.requires_grad:
            out.sum().backward()
            assert wide.grad.isfinite().all()


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        (F.relu, "relu"),
        (torch.relu, "relu"),
        (torch.relu_, "relu"),
        (torch.Tensor.relu_, "relu"),
        (torch.Tensor.__add__, "add"),
        (torch.Tensor.__radd__, "add"),
        (operator.iadd, "add"),
        (operator.truediv, "truediv"),
        (F.max_pool2d, "max_pool2d"),
        (torch.conv_transpose1d, "conv_transpose1d"),
        (torch.batch_norm, "unknown"),  # its arguments are ordered in another way
        (F.batch_norm, "batch_norm"),
        (getattr, "getattr"),
        (print, "unknown"),
    ],
)
def test_spellings_of_functions(spelling, name):
    assert operation_of(spelling).name == name


def test_spellings_of_nodes():
    class Spelled(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.own = nn.LeakyReLU(), Own()

        def forward(self, x):
            return self.own(self.act(x).sigmoid_().transpose(0, 1) - 1)

    class Own(nn.ReLU):
        pass

    class Leaves(fx.Tracer):
        def is_leaf_module(self, module, name):
            return True

    model = Spelled()
    found = [
        operation(n, model.get_submodule(n.target) if n.op == "call_module" else None)
        for n in Leaves().trace(model).nodes
    ]
    names = [o.name for o in found]
    # A subclass may do anything: nothing is known of it.
    assert names == ["unknown", "leaky_relu", "sigmoid", "transpose", "sub", "unknown", "unknown"]
    assert operation_of(max) is UNKNOWN
    assert IN_PLACE[torch.Tensor.sigmoid_] is torch.Tensor.sigmoid


class Between(nn.Module):
    """Two layers with one operation between them, on planes and then on features."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 5, 3)
        self.third, self.last, self.function = nn.Linear(5 * 16, 7), nn.Linear(7, 3), function

    def forward(self, x):
        x = self.second(self.function(self.first(x)))
        return self.last(self.function(self.third(x.flatten(1))))


SHARED = ["softsign", "gelu", "silu", "sigmoid", "hardtanh", "relu6", "tanh", "square", "neg"]


@pytest.mark.parametrize("name", SHARED)
def test_one_row_is_followed_by_paths_shrinking_and_the_engine(name):
    torch.manual_seed(0)
    function, images = function_named(name), torch.randn(20, 2, 8, 8)
    model = Between(function)
    with torch.no_grad():
        model.first.weight[1] = 0  # unit 1 is a constant
        model.third.weight[:, :16] = 0  # unit 0 of the second layer is read by nobody
    masks = {n: p != 0 for n, p in model.named_parameters() if p.ndim > 1}
    found = follow(model, masks, images)
    assert found.why_not is None
    assert found.effective["first.weight"].flatten(1).any(1).tolist() == [True, False, *[True] * 4]
    Masks(masks).apply(model)
    small = snip.shrink(model.eval(), images)
    assert (small.first.out_channels, small.second.out_channels) == (5, 4)
    torch.testing.assert_close(small(images), model(images), rtol=1e-4, atol=1e-5)
    if not available():
        pytest.skip("SNIP_NO_KERNELS is set")
    # 20 images leave lanes idle in the last block.
    fast = snip.accelerate(model.train(), images, ways={})
    words = fast.snip_conversion.source
    assert words.count("from_blocks") + words.count("to_columns") == 0
    torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)
    expected, found = input_gradients((model, fast), images)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize(
    "between",
    [
        nn.LeakyReLU(0.2, inplace=True),
        lambda x: F.elu(x, 1.0, True),
        lambda x: x.tanh_(),
        lambda x: x * torch.sigmoid(x),
        lambda x: x.tanh() - x,
        lambda x: torch.maximum(x, -x),
    ],
    ids=["module in place", "function in place", "method in place", "times", "minus", "maximum"],
)
def test_operations_that_stay_on_the_engines_layouts(between):
    torch.manual_seed(0)
    model, images = Between(between), torch.randn(20, 2, 8, 8)
    fast = accelerated(model, images)
    assert "from_blocks" not in fast.snip_conversion.source
    (expected, _), (found, _) = input_gradients((model, fast), images)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@needs_kernels
def test_a_hook_on_an_activation_sees_plain_tensors():
    model, images, seen = Between(nn.ReLU()), torch.randn(20, 2, 8, 8), []
    model.function.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    fast = accelerated(model, images)
    seen.clear()
    fast(images)
    assert seen == [(20, 6, 6, 6), (20, 7)]


# ---- tracing for the arguments of one call ----


class Options(nn.Module):
    """Decides by what it is called with."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x, mask=None, *more, scale=1.0, sizes=(1, 2)):
        y = self.first(x)
        y = y if mask is None else y * mask
        for other in more:
            y = y + other
        return self.last(y * scale if scale != 1 else y) * sizes[0]


@pytest.mark.parametrize(
    ("batch", "targets"),
    [
        (X, "x first last mul output"),
        ({"x": X, "scale": 2.0}, "x first mul last mul output"),
        ((X, *[torch.ones(5)] * 3), "x mask more_0 more_1 first mul add add last mul output"),
    ],
    ids=["one", "named", "four"],
)
def test_arguments_without_tensors_are_part_of_the_graph(batch, targets):
    traced = trace(Options(), batch)
    names = [getattr(n.target, "__name__", str(n.target)) for n in traced.graph.nodes]
    assert names == targets.split()
    assert len(traced.values) == names.index("first")


def test_nodes_know_their_shapes():
    graph = trace(Options(), X, both_modes=True).graph
    shapes = [(facts(n).shape, facts(n).doubled) for n in graph.nodes if n.op == "call_module"]
    assert shapes == [((4, 5), (8, 5)), ((4, 2), (8, 2))]


@needs_kernels
def test_accelerated_networks_take_their_other_arguments_too(recwarn):
    model = masked(Options())
    fast = snip.accelerate(model, X, ways={})
    assert not [w for w in recwarn if "traced" in str(w.message)]
    source = fast.snip_conversion.source
    assert "on_columns" in source or "linear_chain" in source
    mask = torch.rand(5)
    for args, kwargs in (((X,), {}), ((X, mask), {}), ((), {"x": X}), ((X,), {"scale": 3.0})):
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                found, expected = fast(*args, **kwargs), model(*args, **kwargs)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


# ---- odd forwards ----


class Odd(nn.Module):
    """Two layers, with something odd between them, and all that it may write to."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout(inplace=True)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("scale", torch.ones(6))
        self.history, self.kept, self.calls, self.plain = [], {"last": []}, 0, torch.zeros(2)

    def forward(self, x):
        if self.kind in READS:
            return self.b(READS[self.kind](self, x))
        h = self.a(x)
        if self.kind in WRITES:
            WRITES[self.kind](self, h)
            return self.b(h)
        one, two = OVERWRITES[self.kind](self, h)
        return self.b(one) + self.b(two)


def _without_gradient(m, x):
    with torch.no_grad():
        return m.a(x)


def _sized(m, h):
    rows = h.shape[0]
    return (h := h.relu_()).view(rows, 6), h


# Forwards that depend on the mode or on chance, or compute with tensors of their own.
READS = {
    "no gradient": _without_gradient,
    "mode": lambda m, x: m.a(x) if m.training else x,
    "constant of the mode": lambda m, x: x - torch.full((6,), float(m.training)),
    "torch": lambda m, x: x + m.a(x) if torch.rand(()).item() < 0.5 else x,
    "python": lambda m, x: x + m.a(x) if random.random() < 0.5 else x,
    "numpy": lambda m, x: x + m.a(x) if np.random.rand() < 0.5 else x,
    "shifted": lambda m, x: F.relu(m.a(x - (s := torch.arange(5, -1, -1) / 10)) + s),
    "scaled": lambda m, x: m.a(x) * (m.scale[None] * 2),
}
WRITES = {
    "attribute": lambda m, h: setattr(m, "last", h),
    "counter": lambda m, h: setattr(m, "calls", m.calls + 1),
    "list": lambda m, h: m.history.append(h),
    "nested": lambda m, h: m.kept["last"].append(h),
    "layer": lambda m, h: setattr(m.a, "seen", h),
    "buffer +=": lambda m, h: setattr(m, "steps", operator.iadd(m.steps, 1)),
    "buffer by .data": lambda m, h: m.steps.data.add_(1),
    "buffer assigned": lambda m, h: setattr(m, "steps", torch.ones(())),
    "buffer from h": lambda m, h: m.scale.copy_(h[0]),
    "plain tensor": lambda m, h: m.plain.add_(1),
}
# Two tensors, mostly of one memory, of which one is written to.
OVERWRITES = {
    "positional": lambda m, h: (F.leaky_relu(h, 0.1, True), h),
    "named": lambda m, h: (F.elu(h, inplace=True), h),
    "module": lambda m, h: (h.flatten(1).relu_(), h),
    "train mode only": lambda m, h: (m.drop(h), h),
    "cast": lambda m, h: (h.float().tanh_(), h),
    "view before": lambda m, h: (h.view(-1, 6), F.relu(h, inplace=True)),
    "view of a view": lambda m, h: (h.view(-1, 6)[:, :], h.flatten(1).relu_()),
    "part of a tuple": lambda m, h: (h.chunk(1)[0], h.mul_(2.0).tanh_()),
    "unknown view": lambda m, h: (h.ravel().view(-1, 6), h.relu_()),
    "out": lambda m, h: (h, torch.mul(h, 2.0, out=h)),
    "parameter": lambda m, h: (h, m.a.bias.data.zero_() + h),
    "copy": lambda m, h: (h.clone().tanh_(), h),
    "size": _sized,
}


def refuses(model, words, batch=X, *, both_modes=True):
    with pytest.raises(UntraceableError, match=words) as caught:
        trace(model, batch, both_modes=both_modes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no gradient", "switches gradients"),
        ("mode", "something else in training"),
        ("constant of the mode", "something else in training"),
        *((kind, "random") for kind in ("torch", "python", "numpy")),
        *((kind, "writes|cannot assign") for kind in WRITES),
        *((kind, "overwrites") for kind in OVERWRITES),
    ],
)
def test_forwards_that_a_graph_would_not_repeat_are_refused(kind, words):
    model = Odd(kind)
    if kind in ("copy", "size"):  # nothing is overwritten, or only a size is read again
        trace(model, X, both_modes=True)
        return
    before = copy.deepcopy(model.state_dict())
    refuses(model, "writes" if kind == "parameter" else words)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    if words == "random":
        refuses(model, words, both_modes=False)


class Branches(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


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
    ("network", "line"),
    [
        (Branches, "x.sum() > 0"),
        (Loops, "in range(x.shape[0])"),
        (Makes, "ones("),
        (Packs, "pack_padded"),
    ],
)
def test_the_line_that_depends_on_values_or_sizes_is_told(network, line):
    """In plain words: what Python says of it speaks of a stand-in that no user knows."""
    said = refuses(network(), "depends", both_modes=False)
    assert said.startswith("its forward depends on values or sizes of its input, at ")
    assert line in said
    assert not [word for word in ("Proxy", "argument", "__") if word in said]


def test_errors_of_the_forward_itself_are_told_in_their_own_words():
    refuses(Checks(), "ValueError: x is no tensor", both_modes=False)
    refuses(Options(), "TypeError", {"no_such": X}, both_modes=False)


def contents(model):
    """Everything a model consists of; a proxy of torch.fx cannot be pickled."""
    names = [(name, sorted(vars(m))) for name, m in model.named_modules()]
    state = names, model.state_dict(), model.history, model.kept, model.calls
    return pickle.dumps((*state, model.plain))


@pytest.mark.parametrize("kind", WRITES)
@pytest.mark.parametrize("reader", ["trace", "shrink", "accelerate"])
def test_models_are_left_as_they_were(kind, reader):
    model = masked(Odd(kind))
    before = contents(model)
    drawn = torch.get_rng_state(), random.getstate(), pickle.dumps(np.random.get_state())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        if reader == "trace":
            trace(model, X)
        elif reader == "shrink":
            snip.shrink(model, X)
        elif available():
            snip.accelerate(model, X)
    assert contents(model) == before
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), pickle.dumps(np.random.get_state())) == drawn[1:]


@needs_kernels
def test_forwards_that_write_go_on_writing():
    fast = accelerated(Odd("counter"), X)
    fast(X), fast(X)
    assert fast.calls == 2
    fast = accelerated(Odd("attribute"), X)
    fast(X)
    torch.testing.assert_close(fast.last, fast.a(X))
    torch.save(fast, io.BytesIO())


@needs_kernels
def test_converted_networks_have_their_constants_in_copies_and_pickles():
    assert len(trace(Odd("shifted"), X, both_modes=True).constants) == 1
    fast = accelerated(Odd("shifted"), X)
    assert "linear_chain" in fast.snip_conversion.source or "on_col" in fast.snip_conversion.source
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    twins = [copy.deepcopy(fast), torch.load(file, weights_only=False)]
    expected = masked(Odd("shifted"))
    expected.load_state_dict(snip.densify(fast).state_dict())
    for network in (fast, *twins):
        torch.testing.assert_close(network(X), expected(X), rtol=1e-4, atol=1e-5)


@needs_kernels
def test_results_computed_from_a_buffer_follow_it():
    model = Odd("scaled")
    fast = accelerated(model, X)
    assert "on_columns" in fast.snip_conversion.source
    for network in (model, fast):
        network.scale.fill_(3.0)
    torch.testing.assert_close(fast(X), model(X), rtol=1e-4, atol=1e-5)


def test_only_modules_that_torch_compiled_are_unwrapped():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self._orig_mod = nn.Linear(2, 2)

    own = Own()
    assert unwrap(own) is own
    assert unwrap(torch.compile(own)) is own
