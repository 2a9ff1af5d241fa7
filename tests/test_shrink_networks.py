"""Shrinking the paper's networks: outputs, training, and how much goes."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import snip
from snip.common.errors import SnipWarning
from snip.export.shrink import shrink, shrink_report
from snip.masks import held_masks
from snip.models import build
from snip.network.network import Network
from snip.network.paths import follow

Batch = tuple[torch.Tensor, torch.Tensor]


def pruned(name: str, sparsity: float, *, samples: int = 2) -> tuple[nn.Module, Batch]:
    size, channels = (28, 1) if name.startswith(("lenet", "lstm", "gru")) else (32, 3)
    batch = torch.randn(samples, channels, size, size), torch.randint(0, 10, (samples,))
    model = build(name, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        snip.prune(model, batch, sparsity=sparsity, floor=0, scoring=snip.Scoring.authors())
    return model, batch


def disturb(model: nn.Module) -> None:
    """Biases and statistics as after a training: constants of dead units are not zero any more."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape)
            mask = (held_masks(model) or {}).get(name)
            parameter.data *= 1 if mask is None else mask
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer += 0.1 * torch.rand(buffer.shape)


@pytest.mark.parametrize(
    ("name", "sparsity", "share"),
    [
        ("lenet-300-100", 0.98, 0.4),
        ("lenet-5-caffe", 0.99, 0.5),
        ("vgg-like", 0.97, 0.25),
        ("wrn-16-8", 0.95, 0.2),
        ("lstm-s", 0.95, 0.0),
        ("gru-s", 0.95, 0.0),
    ],
)
def test_outputs_are_equal(name: str, sparsity: float, share: float) -> None:
    model, batch = pruned(name, sparsity)
    for disturbed in (False, True):
        if disturbed:
            disturb(model)
        small = shrink(model, batch)
        report = shrink_report(small)
        assert report.removed >= share * sum(layer.units[0] for layer in report.layers)
        assert report.folded == 0 or disturbed
        with torch.no_grad():
            after, before = small.eval()(batch[0]), model.eval()(batch[0])
        assert (after - before).abs().max() <= 1e-4 * before.abs().max()
        assert type(small) is type(model)
        assert sum(p.numel() for p in small.parameters()) == report.parameters[1]


@pytest.mark.parametrize("name", ["lenet-5-caffe", "vgg-like"])
def test_what_is_left_lies_on_a_path(name: str) -> None:
    """An analysis of its own: with zero biases, a unit stays if it is between input and output."""
    model, batch = pruned(name, 0.99)
    found = follow(model, held_masks(model), batch[0])
    alive = Network.of(model).live_units(found.effective)
    for layer in shrink_report(shrink(model, batch)).layers:
        units = int(alive[f"{layer.name}.weight"].outputs.sum())
        # A path may be shifted out of a small image step by step, which is not looked at here;
        # and the ten outputs stay in any case.
        assert units <= layer.units[1] <= max(units + 2, 10)


@pytest.mark.parametrize(
    ("name", "sparsity", "rate"),
    [("lenet-300-100", 0.98, 0.1), ("lenet-5-caffe", 0.99, 0.1), ("lstm-s", 0.95, 0.1)],
)
def test_training_goes_on_alike(name: str, sparsity: float, rate: float) -> None:
    model, batch = pruned(name, sparsity, samples=8)
    small = shrink(model, batch)
    assert shrink_report(small).folded == 0
    after, before = trained(small, batch, rate), trained(model, batch, rate)
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-4)


def test_training_goes_on_alike_with_batch_norm() -> None:
    """A narrow copy of the pre-activation networks, in double precision."""
    torch.manual_seed(1)
    model = snip.models.networks.WideResNet(snip.models.IMAGES["cifar-10"], depth=10, widen=1)
    snip.initialize(model)
    model = model.double()
    batch = torch.randn(6, 3, 16, 16).double(), torch.randint(0, 10, (6,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)
        snip.prune(model, batch, sparsity=0.97)
    small = shrink(model, batch)
    assert shrink_report(small).folded == 0
    assert shrink_report(small).removed > 20
    after, before = trained(small, batch, 0.05), trained(model, batch, 0.05)
    torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-7)
    held = held_masks(small)
    assert held is not None
    held.check(small)


def trained(model: nn.Module, batch: Batch, rate: float) -> torch.Tensor:
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=5e-4)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
    with torch.no_grad():
        return torch.cat([model.train()(batch[0]), model.eval()(batch[0])])
