"""The one table of operations: what it says is what PyTorch does, and everyone follows it."""

import operator
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import snip
from snip.engine.kernels.library import available
from snip.export.shrink import shrink
from snip.masks import Masks
from snip.network.operations import IN_PLACE, OPERATIONS, UNKNOWN, Kind, operation, operation_of
from snip.network.paths import follow

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
    small = shrink(model.eval(), images)
    assert (small.first.out_channels, small.second.out_channels) == (5, 4)
    torch.testing.assert_close(small(images), model(images), rtol=1e-4, atol=1e-5)
    if not available():
        pytest.skip("SNIP_NO_KERNELS is set")
    # 20 images leave lanes idle in the last block.
    fast = snip.accelerate(model.train(), images, ways={})
    words = fast.snip_conversion.source
    assert words.count("from_blocks") + words.count("to_columns") == 0
    torch.testing.assert_close(fast(images), model(images), rtol=1e-4, atol=1e-5)
    gradients = []
    for network in (model, fast):
        x = images.clone().requires_grad_()
        network(x).square().sum().backward()
        gradients.append((x.grad, network.third.bias.grad))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
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
    Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    fast = snip.accelerate(model, images, ways={})
    assert "from_blocks" not in fast.snip_conversion.source
    gradients = []
    for network in (model, fast):
        x = images.clone().requires_grad_()
        network(x).square().sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
def test_a_hook_on_an_activation_sees_plain_tensors():
    model, images, seen = Between(nn.ReLU()), torch.randn(20, 2, 8, 8), []
    Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    model.function.register_forward_hook(lambda module, args, out: seen.append(tuple(out.shape)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        fast = snip.accelerate(model, images, ways={})
    seen.clear()
    fast(images)
    assert seen == [(20, 6, 6, 6), (20, 7)]
