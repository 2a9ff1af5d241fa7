"""Small pruned networks, their accelerated twins, and timings that a test decides."""

import copy
import warnings

import torch
from torch import nn
from user_networks import Blocks

import snip
from snip.models import build

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
NETWORKS = {
    "lenet-300-100": (0.98, (1, 28, 28)),
    "lenet-5-caffe": (0.99, (1, 28, 28)),
    "lstm-s": (0.95, (1, 28, 28)),
    "gru-s": (0.95, (1, 28, 28)),
    "alexnet-s": (0.9, (3, 32, 32)),
    "vgg-like": (0.97, (3, 32, 32)),
    "wrn-16-8": (0.95, (3, 32, 32)),
}
LABELS = torch.tensor([0, 1, 2, 1, 0])
KEYWORDS = {"x": torch.ones(5, 6), "scale": torch.ones(5)}  # of Calls, which is not traced so


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


def quietly_accelerated(model: nn.Module, inputs: torch.Tensor, **options) -> nn.Module:
    return quietly(snip.accelerate, model, inputs, **options)


def accelerated(model, inputs, loss_fn=None, **options):
    """The accelerated twin of a model, which is pruned in place."""
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    quietly(snip.prune, model, (inputs, labels), sparsity=0.5, loss_fn=loss_fn)
    return quietly_accelerated(model, inputs, **{"ways": {}, **options})


def accelerated_by_squares(model: nn.Module, inputs: torch.Tensor, **options) -> nn.Module:
    """The same for a model whose outputs need not be those of classes."""
    loss = lambda model, batch: model(batch[0]).square().mean()  # noqa: E731
    return accelerated(model, inputs, loss_fn=loss, **options)


class Calls(nn.Module):
    """Notes with how many arguments it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, scale, shift=None):
        x = self.a(x) * scale[:, None]
        return {"y": self.b(x if shift is None else x + shift[:, None])}


def masked_at_random(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """The accelerated model, without a loss: some of these have no gradients."""
    snip.Masks({n: torch.rand(p.shape) < 0.5 for n, p in model.named_parameters()}).apply(model)
    return snip.accelerate(model, images, ways={})


def close(one, two):
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def blocks(sparsity=0.4, prepare=lambda model: None):
    """The pruned network, its accelerated twin and a batch."""
    model, batch = Blocks(), (torch.randn(9, 2, 5, 6), torch.randint(0, 3, (9,)))
    prepare(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snip.SnipWarning)
        snip.prune(model, batch, sparsity=sparsity)
        return model, snip.accelerate(model, batch, ways={}), batch


def assert_equal_states(one, two, **tolerance):
    assert list(one) == list(two)
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, msg=key, **tolerance)


def batch_of(count, shape, classes=10):
    return torch.randn(count, *shape), torch.randint(0, classes, (count,))


def pair(name, count=4):
    """The masked dense network and its accelerated twin, and a batch."""
    sparsity, shape = NETWORKS[name]
    model, batch = build(name, seed=0), batch_of(count, shape)
    # Under these masks no rounding moves a value to the other side of a ReLU, where one element
    # changes the gradients of both engines by more than any tolerance.
    snip.prune(model, batch, sparsity=sparsity, floor=0, scoring=snip.Scoring.authors())
    return copy.deepcopy(model), snip.accelerate(model, batch, ways={}), batch
