"""What is done before a step that trains surviving weights.

The state of a dense network's optimiser, which does not fit them, is refused.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from snip.common.errors import InputError
from snip.masks.holding import before_every_step

WHOLE = "_snip_whole"  # on a parameter of surviving weights: the shape of all weights
LENDERS: WeakSet[Any] = WeakSet()  # sparse layers whose `state_dict` somebody may have written to


def mark(parameter: nn.Parameter, whole: torch.Size) -> None:
    """Note that a parameter has the surviving ones of so many weights."""
    setattr(parameter, WHOLE, whole)
    before_every_step(before_step)


# Optimisers of surviving weights, each with the state that was looked at.
checked: WeakKeyDictionary[torch.optim.Optimizer, Any] = WeakKeyDictionary()


def before_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Take over what was written to the weights, and refuse a state that is not theirs."""
    if torch.compiler.is_compiling():
        from snip.engine.uncompiled import run_uncompiled

        run_uncompiled(_before_step, optimizer)
    else:
        _before_step(optimizer)


def _before_step(optimizer: torch.optim.Optimizer) -> None:
    if LENDERS:
        _take_back(optimizer)
    state = optimizer.state
    if checked.get(optimizer) is state:  # loading another one makes a new dict of it
        return
    marked = [p for p in state if hasattr(p, WHOLE)]
    for parameter in marked:
        whole = getattr(parameter, WHOLE)
        if whole != parameter.shape:
            _check(optimizer, parameter, state[parameter], whole)
    if marked:
        checked[optimizer] = state


def _take_back(optimizer: torch.optim.Optimizer) -> None:
    """Let the layers that it trains take over what was written: the step comes after that."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for layer in list(LENDERS):
        if any(id(p) in trained for p in layer.parameters(recurse=False)):
            layer.take_back()


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
