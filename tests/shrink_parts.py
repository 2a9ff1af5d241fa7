"""Tiny networks with dead units, and shrinking them."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import snip
from snip.masks import Masks

IMAGE = torch.randn(2, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def kill_inputs(layer, *units):
    """Units that no input reaches; the bias stays."""
    layer.weight.data[list(units)] = 0


def kill_outputs(layer, *units):
    """Units that this layer does not read."""
    layer.weight.data[:, list(units)] = 0


def masked(model):
    """Hold the zeros of all weights (not biases) as masks."""
    Masks({n: p != 0 for n, p in model.named_parameters() if p.ndim > 1}).apply(model)
    return model


def check(model, batch):
    """Shrink, and compare outputs in eval mode."""
    small = snip.shrink(model, batch)
    model, small_eval = copy.deepcopy(model).eval(), copy.deepcopy(small).eval()
    with torch.no_grad():
        torch.testing.assert_close(small_eval(batch), model(batch), rtol=1e-4, atol=1e-5)
    return small


def kept(model, name):
    report = snip.shrink_report(model)
    return list(next(layer for layer in report.layers if layer.name == name).kept_constants)


class Net(nn.Module):
    """Layers by name, and a forward written as a function of the network and its input."""

    def __init__(self, code, **layers):
        super().__init__()
        self.code = code
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.code(self, x)


def _two_blocks(m, x):
    x = m.stem(x)
    x = x + m.outer1(F.relu(m.inner1(x)))
    x = x + m.outer2(F.relu(m.inner2(x)))
    return m.head(x.mean((2, 3)))


def residual():
    """Make two blocks on one stream."""
    layers = {"stem": nn.Conv2d(2, 4, 1), "head": nn.Linear(4, 2)}
    for i in (1, 2):
        layers[f"inner{i}"] = nn.Conv2d(4, 3, 3, padding=1)
        layers[f"outer{i}"] = nn.Conv2d(3, 4, 1)
    for name in ("stem", "outer1", "outer2"):
        nn.init.zeros_(layers[name].bias)
    return Net(_two_blocks, **layers)
