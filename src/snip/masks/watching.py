"""Functions of ours that torch calls around every optimiser's step, each once per process.

A hook per optimiser would need a line in the user's loop. Ours find what they need on the
parameters themselves, keep no list of models, and are free for parameters that are not ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

Hook = Callable[[torch.optim.Optimizer, Any, Any], Any]
_ours: set[Hook] = set()


def before_every_step(hook: Hook) -> None:
    """From now on, call `hook` before any optimiser's step."""
    if hook not in _ours:
        register_optimizer_step_pre_hook(hook)
        _ours.add(hook)


def after_every_step(hook: Hook) -> None:
    """From now on, call `hook` after any optimiser's step."""
    if hook not in _ours:
        register_optimizer_step_post_hook(hook)
        _ours.add(hook)


def others_watch() -> bool:
    """Whether somebody else has asked torch to be called around every step."""
    watching = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    return any(hook not in _ours for hook in watching)
