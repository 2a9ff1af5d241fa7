"""Checkpoints, attacked: the optimisers' state and everything beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hostile_values import HOSTILE, HOSTILE_SHARED, HOSTILE_TENSORS, Kind, digest
from networks import make

from snip.common.errors import InputError
from snip.training import Metrics, TrainConfig
from snip.training.checkpoint import load_checkpoint, restore, save_checkpoint
from snip.training.state import State, snapshot

IDENTITY = {**TrainConfig(iterations=4, lr_drops=()).to_dict(), "masks": None}


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.1),
}


def training_parts(kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A network with one step behind it, its optimiser, and a function that takes a step."""
    torch.manual_seed(0)
    model, (inputs, _) = make("conv")
    optimizer = OPTIMIZERS[kind](model.parameters())

    def step() -> None:
        model(inputs).sum().backward()
        optimizer.step()

    step()
    return model, optimizer, step


def make_checkpoint(folder: Path, kind: str = "sgd") -> Path:
    model, optimizer, _ = training_parts(kind)
    line = Metrics(4, 1.0, 0.1, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 0.0, 1.0, 9.0)
    state = State(4, 1.0, 1.0, history=[line], selected=snapshot(model))
    save_checkpoint(
        folder / "checkpoint.pt",
        model=model,
        optimizer=optimizer,
        state=state.to_dict(),
        identity=IDENTITY,
    )
    return folder / "checkpoint.pt"


def read_checkpoint(path: Path, kind: str = "sgd") -> Any:
    """What is restored. One more step must be possible then, and nothing is changed if not."""
    model, optimizer, step = training_parts(kind)
    before = digest([snapshot(model), optimizer.state_dict()])
    try:
        state = restore(
            path,
            model=model,
            optimizer=optimizer,
            identity=IDENTITY,
            validates=True,
            stepped=True,
        )
    except InputError:
        assert digest([snapshot(model), optimizer.state_dict()]) == before
        raise
    found = snapshot(model), copy.deepcopy(optimizer.state_dict()), state.to_dict()
    step()
    return found


def write_checkpoint(path: Path, part: str, tree: Any) -> None:
    torch.save(tree if part == "file" else {**load_checkpoint(path), part: tree}, path)


def checkpoint_kind(name: str, part: str) -> Kind:
    """Checkpoints of an optimiser, altered in one part or in the whole file."""
    return Kind(
        lambda folder: make_checkpoint(folder, name),
        lambda path: read_checkpoint(path, name),
        lambda path: {part: {"file": load_checkpoint(path), **load_checkpoint(path)}[part]},
        write_checkpoint,
        hostile=(*HOSTILE, *HOSTILE_TENSORS, *HOSTILE_SHARED),
    )
