"""Gradients of gradients of an accelerated network: refused by name, never silently dropped."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import snip
from snip.engine.kernels.library import available
from snip.network.parameters import Accelerated

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


class Recurrent(nn.Module):
    def __init__(self, kind, **settings):
        super().__init__()
        self.rnn = kind(6, 5, batch_first=True, **settings)
        self.head = nn.Linear(10 if settings else 5, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def convnet(activation):
    middle = nn.BatchNorm2d(8), activation(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 3, padding=1)
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), *middle, *ends)


def mlp(activation):
    return nn.Sequential(nn.Linear(6, 8), activation(), nn.Linear(8, 3))


NETWORKS = {  # by name: the network, the shape of its input, and ways of its layers
    "mlp": (lambda: mlp(nn.ReLU), (9, 6), {}),
    "smooth": (lambda: mlp(nn.Tanh), (9, 6), {}),
    "leaky": (lambda: mlp(nn.LeakyReLU), (9, 6), {}),
    "linear": (lambda: nn.Sequential(nn.Linear(6, 3)), (9, 6), {}),
    "dense": (lambda: mlp(nn.ReLU), (9, 6), {"0": "dense", "2": "dense"}),
    "tokens": (lambda: mlp(nn.GELU), (2, 4, 6), {}),
    "convnet": (lambda: convnet(nn.ReLU), (9, 2, 6, 6), {}),
    "leaky convnet": (lambda: convnet(nn.LeakyReLU), (9, 2, 6, 6), {}),
    "lstm": (lambda: Recurrent(nn.LSTM), (4, 3, 6), {}),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, bidirectional=True), (4, 3, 6), {}),
    "gru": (lambda: Recurrent(nn.GRU), (4, 3, 6), {}),
    "attention": (Attention, (4, 3, 6), {}),
}


@pytest.fixture(params=NETWORKS)
def networks(request):
    """A pruned network, its accelerated twin and an input."""
    make, shape, ways = NETWORKS[request.param]
    model, x = make(), torch.randn(shape)
    weights = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    snip.Masks({name: torch.rand_like(p) > 0.4 for name, p in weights.items()}).apply(model)
    fast = snip.accelerate(model, x, ways=ways)
    assert isinstance(fast, Accelerated)
    return model, fast, x


def first_gradients(network, x):
    """The gradients of the inputs and, by name, of the parameters."""
    wanted = {"x": x.clone().requires_grad_(), **dict(network.named_parameters())}
    loss = network(wanted["x"]).square().sum()
    found = torch.autograd.grad(loss, list(wanted.values()), create_graph=True)
    return dict(zip(wanted, found, strict=True))


def refused():
    return pytest.raises(snip.InputError, match=r"Gradients of gradients.*snip\.densify\(model\)")


def test_a_gradient_penalty_is_refused(networks):
    _, fast, x = networks
    h = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(fast(h).sum(), h, create_graph=True)
    assert g.requires_grad
    for _ in range(2):  # every time
        with refused():
            (g.norm() - 1).square().backward(retain_graph=True)


def test_a_penalty_on_gradients_of_weights_is_refused(networks):
    _, fast, x = networks
    weights = list(fast.parameters())
    found = torch.autograd.grad(fast(x).square().sum(), weights, create_graph=True)
    with refused():
        torch.stack([g.square().sum() for g in found]).sum().backward()


def test_a_second_derivative_is_refused(networks):
    """As a differential equation's residual takes it; also where None would be an answer."""
    _, fast, x = networks
    h = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(fast(h).square().sum(), h, create_graph=True)
    with refused():
        torch.autograd.grad(g.sum(), h, allow_unused=True)


def test_first_gradients_with_a_graph_are_the_models(networks):
    model, fast, x = networks
    expected = first_gradients(snip.densify(fast), x)
    held = snip.held_masks(model)
    found = first_gradients(fast, x)
    assert found.keys() == expected.keys()
    for name, g in found.items():
        wanted = expected[name].detach()
        if name in held:
            owner, _, key = name.rpartition(".")
            wanted = fast.get_submodule(owner).packed[key].pack(wanted)
        torch.testing.assert_close(g.detach(), wanted, rtol=1e-4, atol=1e-4, msg=name)


def test_a_loop_that_keeps_the_graph_trains_all_the_same():
    trained = []
    for create_graph in (False, True):
        torch.manual_seed(0)
        model, x = mlp(nn.ReLU), torch.randn(9, 6)
        snip.prune(model, (x, torch.randint(0, 3, (9,))), sparsity=0.5)
        fast = snip.accelerate(model, x, ways={})
        optimizer = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            fast(x).square().sum().backward(create_graph=create_graph)
            optimizer.step()
        trained.append(fast.state_dict())
    for name, value in trained[0].items():
        torch.testing.assert_close(trained[1][name], value, rtol=0, atol=0)


def test_checkpointed_gradients_with_a_graph():
    model, x = convnet(nn.ReLU).eval(), torch.randn(9, 2, 6, 6)
    snip.prune(model, (x, torch.randint(0, 3, (9,))), sparsity=0.5)
    fast = snip.accelerate(model, x, ways={})
    weight = next(fast.parameters())
    (expected,) = torch.autograd.grad(fast(x).sum(), weight)
    again = checkpoint(fast, x, use_reentrant=False)
    (found,) = torch.autograd.grad(again.sum(), weight, create_graph=True)
    assert torch.equal(found, expected)
    with refused():
        found.sum().backward()
