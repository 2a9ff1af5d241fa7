"""Accelerated networks: the outputs and gradients of the masked dense ones."""

import copy

import pytest
import torch
import torch.nn.functional as F
from accelerate_parts import CLOSE, NETWORKS, batch_of, pair
from expected_warnings import expects
from networks import packed_gradient
from torch import nn
from torch.overrides import TorchFunctionMode

import snip
from snip.engine.kernels.library import available

pytestmark = [
    pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set"),
    pytest.mark.usefixtures("empty_cache"),
]


class Sides(TorchFunctionMode):
    """Notes the inputs of all ReLUs; where `others` has a mask, values pass that would not, or not.

    A value within rounding of zero may lie on either side of a ReLU, which changes gradients by
    more than rounding. Networks of a million activations have some of these.
    """

    def __init__(self, others: dict[int, torch.Tensor] | None = None) -> None:
        super().__init__()
        self.others, self.inputs = others or {}, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.relu:
            return func(*args, **(kwargs or {}))
        x = args[0]
        self.inputs.append(x.detach().clone())
        other = self.others.get(len(self.inputs) - 1)
        return func(x.clone()) if other is None else x * ((x > 0) ^ other)


def gradients(network, data, labels, others=None):
    """Gradients by name, and the inputs of ReLUs."""
    network.zero_grad()
    with Sides(others) as sides:
        loss = F.cross_entropy(network(data), labels)
    loss.backward()
    return {name: p.grad for name, p in network.named_parameters()}, sides.inputs


def unsure(plain_inputs, exact_inputs):
    """Masks of one value each that float32 may put on the other side, the likeliest first."""
    found = []
    for call, (plain, exact) in enumerate(zip(plain_inputs, exact_inputs, strict=True)):
        distance = exact.abs() / (plain - exact).abs().max().clamp(min=1e-30)
        for at in ((distance <= 3) & (exact != 0)).nonzero():
            mask = torch.zeros_like(exact, dtype=torch.bool)
            mask[tuple(at)] = True
            found.append((distance[tuple(at)].item(), call, mask))
    return [(call, mask) for _, call, mask in sorted(found, key=lambda one: one[0])]


def assert_same(dense, fast, batch):
    """Outputs and all gradients agree."""
    dense.zero_grad(), fast.zero_grad()
    expected, found = dense(batch[0]), fast(batch[0])
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale)
    exact, (data, labels) = copy.deepcopy(dense).double(), batch
    F.cross_entropy(fast(data), labels).backward()
    plain, plain_inputs = gradients(dense, data, labels)
    true, exact_inputs = gradients(exact, data.double(), labels)

    def worst(true):
        """The largest error, in units of what is allowed, and the name of its parameter."""
        # A bias before a batch norm has no gradient but rounding: measure against the largest.
        noise = 1e-6 * max(g.abs().max().item() for g in true.values() if g is not None)
        errors = [(0.0, "")]
        for name, parameter in fast.named_parameters():
            if parameter.requires_grad and parameter.numel():
                wanted = packed_gradient(fast, name, true[name])
                # Deep in a network torch's own rounding comes near the tolerance: three times that.
                own = (packed_gradient(fast, name, plain[name]) - wanted).abs().max().item()
                allowed = max(1e-4 * wanted.abs().max().item(), 3 * own) + noise
                errors.append(((parameter.grad - wanted).abs().max().item() / allowed, name))
        return max(errors)

    # Gradients have to be those of the exact network with some of the unsure values on their other
    # side, to the same tolerance. Mostly that is none of them.
    error, sides = worst(true), {}
    for call, mask in unsure(plain_inputs, exact_inputs) if error[0] > 1 else ():
        tried = sides | {call: mask ^ sides.get(call, False)}
        with_it = worst(gradients(exact, data.double(), labels, tried)[0])
        if with_it < error:
            error, sides = with_it, tried
        if error[0] <= 1:
            break
    assert error[0] <= 1, error


@pytest.mark.parametrize("name", NETWORKS)
@expects("losses")
def test_outputs_and_gradients_equal_the_masked_networks(name):
    dense, fast, batch = pair(name)
    for mode in (True, False):
        assert_same(dense.train(mode), fast.train(mode), batch)


def test_any_batch_size():
    dense, fast, _ = pair("lenet-5-caffe")
    for count in (1, 3, 16, 17, 40):
        assert_same(dense, fast, batch_of(count, (1, 28, 28)))
    small, quick, _ = pair("vgg-like", 2)
    for count in (1, 3):
        assert_same(small.eval(), quick.eval(), batch_of(count, (3, 32, 32)))


@pytest.mark.parametrize("count", [3, 16, 17])
def test_batch_statistics_of_a_batch_that_fills_no_block(count):
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10)
    )
    batch = batch_of(count, (2, 6, 6))
    snip.prune(model, batch, sparsity=0.5)
    dense = copy.deepcopy(model)
    fast = snip.accelerate(model, batch, ways={})
    assert_same(dense, fast, batch)
    for key, value in dense.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[key], value, **CLOSE)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 2)])
@pytest.mark.parametrize(
    ("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), ((2, 3), (0, 1), 1)]
)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("sparsity", [0.3, 0.95, None])
@expects("losses")
def test_convolutions(kernel, stride, padding, dilation, groups, sparsity):
    conv = nn.Conv2d(4, 6, kernel, stride, padding, dilation, groups)
    model = nn.Sequential(conv, nn.Flatten(), nn.LazyLinear(10))
    batch = batch_of(5, (4, 9, 8))
    model(batch[0])
    if sparsity is None:  # a layer of which nothing is left
        masks = snip.Masks(
            {"0.weight": torch.zeros(conv.weight.shape).bool(), "2.weight": model[2].weight > 0}
        )
        masks.apply(model)
    else:
        snip.prune(model, batch, sparsity=sparsity)
    dense = copy.deepcopy(model)
    assert_same(dense, snip.accelerate(model, batch, ways={}), batch)


class Branches(nn.Module):
    """Additions, shared values, pools, means and an operation that the engine does not know."""

    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 4, 3, padding=1)
        self.c = nn.Conv2d(4, 4, 1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.a(x)
        y = self.b(F.relu(self.norm(x))) + x
        y = F.max_pool2d(y, 3, 2, 1) * torch.sigmoid(F.max_pool2d(y, 3, 2, 1))
        y = self.c(y) + y.mean((2, 3), keepdim=True)
        return self.head(torch.flatten(self.pool(F.relu(y)), 1))


def test_branches_and_foreign_operations():
    model, batch = Branches(), batch_of(5, (2, 8, 8))
    snip.prune(model, batch, sparsity=0.6)
    dense = copy.deepcopy(model)
    assert_same(dense, snip.accelerate(model, batch, ways={}), batch)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.conv(x).mean((2, 3))
        return self.head(x if x.sum() > 0 else x * 2)


@expects("losses")
def test_a_model_that_cannot_be_traced_still_works():
    model, batch = Untraceable(), batch_of(5, (2, 6, 6))
    snip.prune(model, batch, sparsity=0.6)
    dense = copy.deepcopy(model)
    with pytest.warns(snip.SnipWarning, match="cannot be traced"):
        fast = snip.accelerate(model, batch, ways={})
    assert "AcceleratedUntraceable" in repr(fast)
    assert_same(dense, fast, batch)


def test_another_size_of_image_is_computed_correctly():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10)
    )
    batch = batch_of(5, (2, 8, 8))
    snip.prune(model, batch, sparsity=0.5)
    dense = copy.deepcopy(model)
    fast = snip.accelerate(model, batch, ways={})
    assert_same(dense, fast, batch_of(3, (2, 11, 6)))


@pytest.mark.parametrize("name", ["lenet-5-caffe", "lstm-s"])
@expects("losses")
def test_another_dtype_goes_the_slow_way(name):
    dense, fast, (inputs, _) = pair(name)
    torch.testing.assert_close(fast.double()(inputs.double()), dense.double()(inputs.double()))


def test_channels_last_inputs():
    dense, fast, (inputs, targets) = pair("vgg-like", 3)
    batch = inputs.contiguous(memory_format=torch.channels_last), targets
    assert_same(dense.eval(), fast.eval(), batch)


def test_a_shared_layer_and_a_tied_weight():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(10, 10)
            self.tied = nn.Linear(10, 10, bias=False)
            self.other = nn.Linear(10, 10, bias=False)
            self.other.weight = self.tied.weight

        def forward(self, x):
            return self.other(F.relu(self.tied(self.layer(F.relu(self.layer(x))))))

    model, batch = Twice(), batch_of(4, (10,))
    snip.prune(model, batch, sparsity=0.5)
    dense = copy.deepcopy(model)
    fast = snip.accelerate(model, batch, ways={})
    torch.testing.assert_close(fast(batch[0]), dense(batch[0]), **CLOSE)
