"""The one test of whether hooks wait on a module."""

from __future__ import annotations

from torch import nn

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def hooked(module: nn.Module) -> bool:
    """Whether hooks on the module wait for a forward or backward pass of torch's."""
    return any(getattr(module, name) for name in HOOKS)
