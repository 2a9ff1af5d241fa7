"""Refuses the state of a dense network's optimiser, which does not fit surviving weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from snip.common.errors import InputError

WHOLE = "_snip_whole"  # on a parameter of surviving weights: the shape of all weights
CHECKED = "_snip_checked"  # on an optimiser: the state that was looked at


def mark(parameter: nn.Parameter, whole: torch.Size) -> None:
    """Note that a parameter has the surviving ones of so many weights."""
    global _watching
    setattr(parameter, WHOLE, whole)
    if not _watching:  # once per process: one hook per optimiser would need a line of the user's
        register_optimizer_step_pre_hook(before_step)
        _watching = True


_watching = False


def before_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Look at each state once: loading another one makes a new dict of it."""
    state = optimizer.state
    if vars(optimizer).get(CHECKED) is state:
        return
    for parameter, own in state.items():
        whole = getattr(parameter, WHOLE, None)
        if whole is not None and whole != parameter.shape:
            _check(optimizer, parameter, own, whole)
    setattr(optimizer, CHECKED, state)


def _check(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, own: Any, whole: torch.Size
) -> None:
    for name, value in own.items():
        if isinstance(value, torch.Tensor) and value.shape == whole:
            raise InputError(
                f"the state of this {type(optimizer).__name__} is that of a dense network: it has "
                f"{name!r} of shape {list(whole)} for {parameter.numel()} surviving weights. Load "
                "it into the optimiser of snip.densify(network), or start with a new one."
            )
