"""What the tests of shrinking share."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from snip.export.shrink import shrink, shrink_report
from snip.masks import Masks

IMAGE = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def kill_inputs(layer: nn.Module, *units: int) -> None:
    """Units that no input reaches; the bias stays."""
    layer.weight.data[list(units)] = 0


def kill_outputs(layer: nn.Module, *units: int) -> None:
    """Units that this layer does not read."""
    layer.weight.data[:, list(units)] = 0


def masked(model: nn.Module) -> nn.Module:
    """Hold the zeros of all weights (not biases) as masks."""
    Masks({n: p != 0 for n, p in model.named_parameters() if p.ndim > 1}).apply(model)
    return model


def check(model: nn.Module, batch: torch.Tensor) -> nn.Module:
    """Shrink, and compare outputs in eval mode."""
    small = shrink(model, batch)
    model, small_eval = copy.deepcopy(model).eval(), copy.deepcopy(small).eval()
    with torch.no_grad():
        torch.testing.assert_close(small_eval(batch), model(batch), rtol=1e-4, atol=1e-5)
    return small


def kept(model: nn.Module, name: str) -> list[tuple[str, int]]:
    report = shrink_report(model)
    return list(next(layer for layer in report.layers if layer.name == name).kept_constants)


class Residual(nn.Module):
    """Two blocks on one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 1)
        self.inner1, self.outer1 = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.inner2, self.outer2 = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(4, 2)
        for layer in (self.stem, self.outer1, self.outer2):
            nn.init.zeros_(layer.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.outer1(F.relu(self.inner1(x)))
        x = x + self.outer2(F.relu(self.inner2(x)))
        return self.head(x.mean((2, 3)))
