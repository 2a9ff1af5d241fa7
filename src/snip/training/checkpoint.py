"""Checkpoints: written whole, verified when read, restored to the last bit."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snip.common import files
from snip.common.checks import differences, fits
from snip.common.errors import FileError, warn
from snip.common.text import shortened
from snip.network.untouched import drawing_devices
from snip.training.config import TrainConfig
from snip.training.optimizer_state import check_optimizer, load_optimizer
from snip.training.state import State, different_tensors, extra_state, snapshot
from snip.training.torch_files import read_torch

FORMAT = 1
PARTS: dict[str, Any] = {
    "format": int,
    "identity": dict[str, str | float | bool | list[int] | None],
    "model": dict[str, Any],
    "optimizer": dict[str, Any],
    "hooks": dict[str, Any],
    "rng": dict[str, Any],
    "state": dict[str, Any],
    "threads": int,
}
START_OVER = "restore it from a copy, or delete it to start the training over"


def save_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
    hooks: nn.Module | None = None,
) -> None:
    """Put a checkpoint in place of the last one, which stays whole until that moment."""
    content = {
        "format": FORMAT,
        "identity": dict(identity),
        "model": {**snapshot(model), **_readable(extra_state(model))},
        "optimizer": optimizer.state_dict(),
        "hooks": {} if hooks is None else snapshot(hooks),
        "rng": random_state(model),
        "state": dict(state),
        "threads": torch.get_num_threads(),
    }
    files.write_with(path, lambda temporary: torch.save(content, temporary))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint and refuse a damaged one; runs no code that the file may carry."""
    if not files.is_file(path):
        raise FileError(f"there is no checkpoint at {path}.")
    with files.reading(path, fix=START_OVER):
        content = read_torch(path, START_OVER)
        if isinstance(content, dict):
            content.setdefault("hooks", {})  # a checkpoint from before there were any
        if not isinstance(content, dict) or any(part not in content for part in PARTS):
            raise ValueError("it is no checkpoint of a training run")
        for part, kind in PARTS.items():
            if not fits(content[part], kind):
                raise ValueError(f"its part {part!r} is of another kind")
        if content["threads"] < 1:
            raise ValueError(f"it was written by {content['threads']} threads")
    if content["format"] != FORMAT:
        raise FileError(
            f"checkpoint {path} has format {content['format']!r}, this version reads {FORMAT}: "
            "finish the run with the version that began it, or delete the file to start over."
        )
    return content


def restore(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    validates: bool,
    stepped: bool,
    hooks: nn.Module | None = None,
) -> State:
    """Load the checkpoint of this very run into its parts and return its state.

    All that can be wrong with it is found before anything is changed. `validates` tells whether
    the run has a validation part, `stepped` whether each of its steps is one of the optimiser's.
    """
    content = load_checkpoint(path)
    _same_run(path, content["identity"], identity)
    _same_network(path, content["model"], model)
    before, own = random_state(model), snapshot(model)
    with files.reading(path, fix=START_OVER):
        state = State.from_dict(content["state"])
        weights = model.state_dict()
        state.check(iterations=identity["iterations"], weights=weights, validates=validates)
        steps = state.iteration if stepped else None
        reset = hooks is not None
        check_optimizer(optimizer, content["optimizer"], steps=steps, reset=reset)
        if different_tensors(content["hooks"], {} if hooks is None else hooks.state_dict()):
            raise ValueError("what its method remembers is of another network")
        try:
            set_random_state(model, content["rng"])
            # What a module of the user's does with its extra state may fail.
            model.load_state_dict({**extra_state(model), **content["model"]})
            load_optimizer(optimizer, content["optimizer"])
            if hooks is not None:
                hooks.load_state_dict(content["hooks"])
        except Exception:
            set_random_state(model, before)
            model.load_state_dict(own, strict=False)
            raise
    _warn_of_threads(content["threads"])
    return state


def _readable(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a model's extra state that can be read back without running code."""
    kept = {}
    for name, value in extra.items():
        buffer = io.BytesIO()
        try:
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, weights_only=True)
        except Exception:
            # An object of the user's own class: a resumed run keeps the one in its fresh model.
            continue
        kept[name] = value
    return kept


def random_state(model: nn.Module) -> dict[str, Any]:
    """The states of torch's random generators: the CPU's, and by type those of other devices.

    Of the types on which the model is, all devices of this machine, by their index.
    """
    found: dict[str, Any] = {"cpu": torch.get_rng_state()}
    for kind in _kinds_of_devices(model):
        module = getattr(torch, kind)
        found[kind] = [module.get_rng_state(index) for index in range(module.device_count())]
    return found


def set_random_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Restore torch's random generators; of other devices those that are here."""
    torch.set_rng_state(state["cpu"])
    for kind in _kinds_of_devices(model):
        module = getattr(torch, kind)
        for index, value in enumerate(state.get(kind, [])[: module.device_count()]):
            module.set_rng_state(value, index)


def _kinds_of_devices(model: nn.Module) -> set[str]:
    return {device.type for device in drawing_devices(model)}


def _warn_of_threads(theirs: int) -> None:
    ours = torch.get_num_threads()
    if theirs != ours:
        warn(
            f"this run began with {theirs} threads and goes on with {ours}: sums may differ in "
            f"their last bits. torch.set_num_threads({theirs}) resumes it exactly.",
        )


def _same_run(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Refuse the checkpoint of another configuration, naming what differs."""
    # A checkpoint from before a new option existed was trained with the option's default.
    theirs = {**TrainConfig().to_dict(), **theirs}
    changed = differences(theirs, ours)
    if changed:
        raise FileError(
            f"checkpoint {path} belongs to another configuration ({changed}): "
            "choose another folder, or start over in this one with resume=False."
        )


def _same_network(path: Path, theirs: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse the weights of another network before any is loaded."""
    ours = model.state_dict()
    wrong = [name for name in theirs if name not in ours] or different_tensors(theirs, ours)
    if wrong:
        names = ", ".join(shortened(name, 100) for name in wrong[:3])
        raise FileError(
            f"checkpoint {path} holds another network (it differs at {names}): "
            "choose another folder, or start over in this one with resume=False."
        )
