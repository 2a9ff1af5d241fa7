"""What the tests of the trainer share: networks, one with chance in it, and a way to stop."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

import snip
from snip.data import Dataset
from snip.training import Metrics, TrainConfig, train_step

CONFIG = TrainConfig(iterations=60, lr_drops=(20, 40), batch_size=50, eval_every=20)


def network(hidden: int = 16) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def chancy_network() -> nn.Module:
    """Small, and with all that a resumed run must bring back: dropout and batch norm."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(32, 10),
    )  # fmt: skip


def pruned_network(dataset: Dataset) -> nn.Module:
    model = chancy_network()
    snip.prune(model, next(iter(dataset.evaluation_batches(100))), sparsity=0.9)
    return model


def repeatable(history: Iterable[Metrics]) -> list[dict[str, object]]:
    """What a second run must reproduce to the last bit: everything but the times."""
    times = ("seconds", "cpu_seconds", "images_per_second")
    return [{k: v for k, v in line.to_dict().items() if k not in times} for line in history]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


class StoppedError(Exception):
    """Stands for a process that ends."""


def stopping_at(call: int) -> Callable[..., tuple[float, int]]:
    calls = 0

    def step(*args: object) -> tuple[float, int]:
        nonlocal calls
        calls += 1
        if calls == call:
            raise StoppedError
        return train_step(*args)  # type: ignore[arg-type]

    return step


def weights_of(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.ndim > 1}
