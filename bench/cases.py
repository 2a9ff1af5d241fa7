"""The networks of the speed tables: their SNIP masks, a batch, the training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import snip
from snip.common.timing import Work, best_times
from snip.data import load
from snip.models import build
from snip.network.parameters import Accelerated
from snip.scoring.batches import cross_entropy

Batch = tuple[torch.Tensor, torch.Tensor]
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]
# Rates at which no network diverges, however long it is timed; a step takes as long at any rate.
SGD = {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}
OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), **SGD),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4),
}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    model: str
    sparsity: float
    batch: int
    shape: tuple[int, int, int]
    batch_norm: str = "eval"  # while scoring


CASES = (
    Case("lenet-300-100", 0.98, 100, (1, 28, 28)),
    Case("lenet-5-caffe", 0.99, 100, (1, 28, 28)),
    Case("lstm-b", 0.95, 100, (1, 28, 28)),
    # Batch norm by batch statistics while scoring keeps the early, dear layers denser than the
    # authors' inference mode does (FLOP bound 4.4 against 10.4 for VGG-like): the harder masks.
    Case("vgg-like", 0.97, 128, (3, 32, 32), "train"),
    Case("wrn-16-8", 0.95, 128, (3, 32, 32), "train"),
)


def images(case: Case) -> Batch:
    """One normalised batch of the network's data set, for masks like those that users get."""
    try:
        dataset = load("mnist" if case.shape[0] == 1 else "cifar-10")
    except snip.FileError as error:
        print(f"masks from noise, which are sparser where it is dear: {error}")
        return torch.randn(case.batch, *case.shape), torch.randint(0, 10, (case.batch,))
    return next(iter(dataset.training_batches(case.batch)))


def pruned(case: Case, batch_size: int | None = None) -> tuple[nn.Module, Batch, snip.Masks]:
    """The network with its SNIP masks, and a batch of the shape of its data."""
    torch.manual_seed(0)
    count = batch_size or case.batch
    model = build(case.model, seed=0)
    scoring = snip.Scoring(batch_norm=case.batch_norm)
    masks = snip.prune(model, images(case), sparsity=case.sparsity, scoring=scoring)
    return model, (torch.randn(count, *case.shape), torch.randint(0, 10, (count,))), masks


def flop_bound(masks: snip.Masks) -> float:
    """Dense over surviving multiply-adds: what no implementation of these masks can exceed."""
    uses = masks.provenance.uses
    dense = sum(masks[name].numel() * uses.get(name, 0) for name in masks)
    return dense / sum(int(masks[name].sum()) * uses.get(name, 0) for name in masks)


def ordinary_step(loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Work:
    """The body of the loop that users have."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def training_step(model: nn.Module, batch: Batch) -> Work:
    """Forward, backward and SGD with momentum and weight decay; ours by `snip.training_step`."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), **SGD, fused=True)
    if isinstance(model, Accelerated):
        fused = snip.training_step(model, optimizer)
        return lambda: fused(*batch)
    return ordinary_step(lambda: cross_entropy(model, batch), optimizer)


def times_as_drawn(works: dict[str, Work], model: nn.Module, *, rounds: int) -> dict[str, float]:
    """Best seconds of each work, which finds the network as it is now at every turn.

    A network that an earlier turn pruned is mostly zeros, and has scores of another kind.
    """
    drawn = {name: value.clone() for name, value in model.state_dict().items()}
    times = best_times(works, rounds=rounds, setup=lambda: model.load_state_dict(drawn))
    model.load_state_dict(drawn)
    return times
