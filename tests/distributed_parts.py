"""Small networks, data that is split over processes, and the ways to share a model."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES = 16


class Dyadic(nn.Module):
    """A linear network of small whole numbers: all its float sums are exact in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 9), nn.Linear(9, 4)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-8, 9, parameter.shape, generator=generator) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def mlp() -> nn.Module:
    """A network whose gradients are rounded."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 4))


def zero_head() -> nn.Module:
    """A network whose head starts at zero, behind which nothing moves the loss."""
    model = mlp()
    nn.init.zeros_(model[4].weight)
    return model


NETWORKS = {"dyadic": Dyadic, "mlp": mlp, "zero-head": zero_head}


def data(name: str = "mlp") -> tuple[torch.Tensor, torch.Tensor]:
    """All the samples: of small whole numbers for the network that is exact."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(-4, 5, (SAMPLES, 6), generator=generator).float()
    if name != "dyadic":
        inputs = torch.randn(SAMPLES, 6, generator=generator)
    return inputs, torch.arange(SAMPLES) % 4


def batches_of(rank: int, count: int, name: str = "mlp") -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of four samples that a process has; of one process, all."""
    inputs, targets = data(name)
    whole = list(zip(inputs.split(4), targets.split(4), strict=True))
    return whole[rank::count]


def exact_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """A mean whose gradients are small whole numbers over a power of two."""
    outputs = model(batch[0])
    return (outputs * (batch[1][:, None] - 1)).sum() / (4 * len(outputs))


def shared(model: nn.Module, how: str) -> nn.Module:
    """The model as several processes share it: "ddp" or "fsdp"."""
    if how == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in list(model.children()):
        if list(layer.parameters()):
            fully_shard(layer)
    return fully_shard(model)
