"""Small pruned networks, and timings that a test decides, for tests of `accelerate`."""

import warnings

import torch
from torch import nn

import snip

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


class Calls(nn.Module):
    """Notes with how many arguments it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x, scale, shift=None):
        x = self.a(x) * scale[:, None]
        return {"y": self.b(x if shift is None else x + shift[:, None])}
