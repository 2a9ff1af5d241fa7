"""Copies of a user's network."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def copy_of(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy; what `memo` has for an object's id stands for its copy.

    Results of a forward that lie on a module, such as the weight that `torch.nn.utils.weight_norm`
    computes, are copied without their graph: torch copies no tensor that has one, and the next
    forward computes them anew.
    """
    memo = {} if memo is None else memo
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)
