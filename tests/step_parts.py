"""Small networks that run as one native call, equal twins of them, and torch's own step."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

import snip


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 7)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, stride=2), nn.MaxPool2d(2, stride=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 2 * 2, 20), nn.ReLU(), nn.Linear(20, 7)),
    )


def batch_for(model: nn.Module, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (2, 14, 14) if any(isinstance(m, nn.Conv2d) for m in model) else (1, 8, 8)
    return torch.randn(count, *shape), torch.randint(0, 7, (count,))


def pair_of_networks(make, count: int = 24, sparsity: float = 0.7):
    """Two equal accelerated networks and a batch."""
    model = make()
    batch = batch_for(model, count)
    snip.prune(model, batch, sparsity=sparsity, params=lambda name, _m, _p: "weight" in name)
    fast = snip.accelerate(model, batch, ways={})
    assert fast.snip_conversion.straight is not None
    return fast, copy.deepcopy(fast), batch


def on_graph(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The network's output by its converted graph, not by the one native call."""
    return network.snip_conversion.run(network, images)


def ordinary(model, optimizer, images, labels) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def assert_same(one: nn.Module, two: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=name)
