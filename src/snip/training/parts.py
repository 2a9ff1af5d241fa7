"""What a training is made of: its batches, its optimiser, its random state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.data.batches import Batches
from snip.data.dataset import Dataset
from snip.training.config import TrainConfig

EVALUATION_BATCH = 250  # images; decides speed and memory, and the last bits of a loss


@dataclass(frozen=True)
class Data:
    """The three parts of a data set as batches, and what tells it from other data."""

    train: Batches
    valid: Batches | None  # None if the validation's fraction is 0
    test: Batches
    identity: dict[str, Any]


def data_for(dataset: Dataset, config: TrainConfig) -> Data:
    """Cut a data set as `config` says; the validation part is the same for every seed."""
    train, valid = dataset.split_validation(config.validation)
    source = dataset if config.augment else dataclasses.replace(dataset, augment=None)
    if len(train) < config.batch_size:
        raise InputError(
            f"batch_size is {config.batch_size}, but {dataset.name} has only {len(train)} "
            "training images: ask for fewer."
        )
    return Data(
        source.training_batches(config.batch_size, split=train, seed=config.seed, drop_last=True),
        dataset.evaluation_batches(EVALUATION_BATCH, split=valid) if len(valid) else None,
        dataset.evaluation_batches(EVALUATION_BATCH),
        dataset.identity(),
    )


def stream(batches: Batches, start: int, stop: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of steps `start` to `stop`, epoch after epoch."""
    first, skipped = divmod(start, len(batches))
    epochs = (batches.epoch(k, start=skipped if k == first else 0) for k in count(first))
    return islice(chain.from_iterable(epochs), stop - start)


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Over the parameters that need gradients. Held masks keep pruned weights zero."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("the model has no parameter to train: set requires_grad on some.")
    if config.optimizer != "sgd":
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group the rate `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch (dropout draws from it), and give the caller's random state back at the end."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
