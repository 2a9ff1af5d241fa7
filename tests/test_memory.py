"""Memory that nobody else can see: gradients in it become scores without a copy."""

import numpy as np
import pytest
import torch
from torch import nn

import snip
from snip.common.memory import is_sole_owner


class Itself(torch.autograd.Function):
    """A user's function that hands out a tensor of its own as the gradient."""

    @staticmethod
    def forward(ctx, weight, factor):
        ctx.save_for_backward(factor)
        return (weight * factor).sum()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0], None


def gradients(loss, *weights):
    return list(torch.autograd.grad(loss, weights))


@pytest.fixture
def weight():
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(4, 3))


def test_gradients_of_layers_are_ours(weight):
    other = nn.Parameter(torch.randn(4, 3, 3, 3))
    images, rows = torch.randn(2, 3, 5, 5), torch.randn(2, 3)
    loss = nn.functional.conv2d(images, other).square().sum()
    found = gradients(loss + nn.functional.linear(rows, weight).square().sum(), other, weight)
    assert is_sole_owner(found)
    found.pop()
    assert is_sole_owner(found)


def test_one_gradient_of_two_parameters_is_ours_when_the_other_is_gone(weight):
    other = nn.Parameter(torch.randn(4, 3))
    found = gradients((weight + other).square().sum(), weight, other)
    assert not is_sole_owner(found)
    found.pop()
    assert is_sole_owner(found)


def test_parts_of_one_gradient_are_not_ours(weight):
    other = nn.Parameter(torch.randn(4, 3))
    found = gradients(torch.cat([weight, other]).square().sum(), weight, other)
    assert not is_sole_owner(found)
    found.pop()
    assert not is_sole_owner(found)  # it would keep the memory of both


@pytest.mark.parametrize("take", [lambda g: g, lambda g: g.view(-1), torch.t, torch.Tensor.numpy])
@pytest.mark.parametrize("linear", [False, True])
def test_what_a_hook_keeps_is_not_ours(weight, take, linear):
    kept = []
    weight.register_hook(lambda gradient: kept.append(take(gradient)))
    used = nn.functional.linear(torch.randn(2, 3), weight) if linear else weight
    found = gradients(used.square().sum(), weight)
    assert not is_sole_owner(found)
    kept.clear()
    found = [found[0].clone()]
    assert is_sole_owner(found)


def test_what_a_function_hands_out_is_not_ours(weight):
    plain, array = torch.randn(4, 3), np.ones((4, 3), dtype=np.float32)
    assert not is_sole_owner(gradients(Itself.apply(weight, plain), weight))
    assert not is_sole_owner(gradients(Itself.apply(weight, plain.view(4, 3)), weight))
    assert not is_sole_owner(gradients(Itself.apply(weight, torch.from_numpy(array)), weight))
    loss = Itself.apply(weight, torch.randn(4, 3))  # which the graph alone has
    assert not is_sole_owner(list(torch.autograd.grad(loss, [weight], retain_graph=True)))


def test_scores_are_in_the_memory_of_gradients_and_shared_ones_stay_as_they_are():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 300))
    batch = torch.randn(8, 300), torch.randint(0, 300, (8,))
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    names, weights = zip(*model.named_parameters(), strict=True)
    expected = dict(zip(names, gradients(loss, *weights), strict=True))
    places, kept = {}, []
    for name, weight in model.named_parameters():
        weight.register_hook(lambda g, name=name: places.update({name: g.data_ptr()}))
    model[2].weight.register_hook(kept.append)
    scores = snip.connection_sensitivity(model, batch)
    assert torch.equal(kept[0], expected["2.weight"])
    for name, weight in model.named_parameters():
        assert torch.equal(scores[name], (expected[name] * weight.detach()).abs())
    assert scores["0.weight"].data_ptr() == places["0.weight"]
    assert scores["2.weight"].data_ptr() != places["2.weight"]


def test_a_loss_may_use_one_tensor_for_two_weights():
    torch.manual_seed(0)

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = (nn.Linear(300, 300, bias=False) for _ in range(2))

        def forward(self, x):
            return nn.functional.linear(x, self.one.weight + self.two.weight)

    model, batch = Sum(), (torch.randn(5, 300), torch.randint(0, 300, (5,)))
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    gradient = torch.autograd.grad(loss, model.one.weight)[0]
    scores = snip.connection_sensitivity(model, batch)
    assert torch.equal(scores["one.weight"], (gradient * model.one.weight.detach()).abs())
    assert torch.equal(scores["two.weight"], (gradient * model.two.weight.detach()).abs())
