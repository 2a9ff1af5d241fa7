"""Networks that are called on several tensors are traced, and called in any way afterwards."""

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import snip
from snip.engine.kernels.library import available

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")

LABELS = torch.tensor([0, 1, 2, 1, 0])


class TwoImages(nn.Module):
    """Two pictures through one body; their difference, scaled, is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU())
        self.join = nn.Conv2d(4, 4, 1)
        self.head = nn.Linear(4, 3)

    def forward(self, one, two, scale=1.0):
        x = self.join(self.body(one) + self.body(two)).mean((2, 3))
        return self.head(x * scale)


def networks():
    model, one, two = TwoImages(), torch.randn(5, 2, 6, 6), torch.randn(5, 2, 6, 6)
    loss_fn = lambda model, batch: model(*batch[:2]).square().mean()  # noqa: E731
    snip.prune(model, (one, two, LABELS), sparsity=0.5, loss_fn=loss_fn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that it cannot be traced
        fast = snip.accelerate(model, (one, two, LABELS), ways={})
    return model, fast, one, two


def test_several_tensors_are_traced_with_targets_behind_them():
    model, fast, one, two = networks()
    assert "on_blocks" in fast.snip_conversion.source
    for again in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        for training in (True, False):
            model.train(training), again.train(training)
            expected = model(one, two)
            torch.testing.assert_close(again(one, two), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(again(two=two, one=one), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(again(one, two=two), expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_several_tensors():
    model, fast, one, two = networks()
    found = []
    for network in (model, fast):
        given = [x.clone().requires_grad_() for x in (one, two)]
        found.append(torch.autograd.grad(network(*given).square().sum(), given))
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


def test_other_calls_go_through_the_users_forward():
    model, fast, one, two = networks()
    model.eval(), fast.eval()
    calls = [
        ((one, two, 0.5), {}),
        ((one, two), {"scale": 0.5}),
        ((one, two[:1]), {}),  # one picture for all of them
        ((one[:1], two), {}),
        ((one[:3], two[:3]), {}),
        ((torch.cat([one] * 4), torch.cat([two] * 4)), {}),
    ]
    for args, kwargs in calls:
        expected = model(*args, **kwargs)
        torch.testing.assert_close(fast(*args, **kwargs), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError):
        fast(one)
    with pytest.raises(TypeError):
        fast(one, three=two)
