"""Lets `optimizer.step()` of a user's own loop run natively where it trains a straight network.

torch asks hooks before every step, and takes the step on the arguments that they return. Where the
native update has taken the step, the hook returns an optimiser that has nothing to do. So the
user's optimiser keeps its groups, its state and its `step`, and nothing of it is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from snip.engine.fused.update import RULES, Update
from snip.masks.holding import before_every_step, others_watch

STRAIGHT = "_snip_straight"  # on a parameter: it is one of a straight network that was trained
# The optimisers that were found to have some of those.
_updates: WeakKeyDictionary[torch.optim.Optimizer, Update] = WeakKeyDictionary()


def step_natively(parameters: Iterable[nn.Parameter]) -> None:
    """From now on, take the steps of optimisers that train these parameters."""
    before_every_step(before_step)
    for p in parameters:  # a mark, as torch cannot swap a parameter that has weak references
        setattr(p, STRAIGHT, True)


def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    """Take the step if it can be taken natively; None otherwise."""
    if type(optimizer) not in RULES or len(args) > 1 or kwargs:
        return None  # A closure has yet to compute the gradients.
    if torch.compiler.is_compiling() or is_watched(optimizer):
        return None
    update = _update_of(optimizer)
    if update is None or not update.take(optimizer, _gradient):
        return None
    kind: Any = type(optimizer)
    return (_idle(kind),), {}


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether anybody but us waits for its step, or scales its gradients in it.

    What we do around a step neither reads nor changes a gradient.
    """
    watched: Any = optimizer
    if watched._optimizer_step_pre_hooks or watched._optimizer_step_post_hooks or others_watch():
        return True
    return getattr(watched, "found_inf", None) is not None  # torch.amp.GradScaler


def _update_of(optimizer: torch.optim.Optimizer) -> Update | None:
    found = _updates.get(optimizer)
    if found is None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        if any(hasattr(p, STRAIGHT) for p in parameters):
            found = _updates[optimizer] = Update(RULES[type(optimizer)])
    return found


def _gradient(parameter: nn.Parameter) -> torch.Tensor | None:
    return parameter.grad


@cache
def _idle(kind: Any) -> torch.optim.Optimizer:
    """An optimiser of this kind that has no groups, so that its step does nothing."""
    idle: torch.optim.Optimizer = kind([torch.zeros(0)])  # torch makes none without a parameter
    idle.param_groups.clear()
    return idle
