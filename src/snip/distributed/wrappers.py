"""Wrappers of a user's module: DDP, DataParallel, torch.compile; parameters split by FSDP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import cast

import torch
from torch import nn

from snip.common.errors import KindError


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DDP, DataParallel and torch.compile wrappers."""
    *_, own = wrappers(model)
    return own


def wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """The model and what it wraps, from outside to the user's own module."""
    if not isinstance(model, nn.Module):
        raise KindError(
            f"the model is a {type(model).__name__}, not a torch.nn.Module: "
            "pass the network itself, not its parameters or its state."
        )
    while True:
        yield model
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif is_compiled(model):
            model = cast(nn.Module, model._orig_mod)
        else:
            return


def is_compiled(model: nn.Module) -> bool:
    """True if torch.compile made the module; dynamo takes long to import, so it is not imported."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and isinstance(model, dynamo.OptimizedModule)


def is_sharded(parameter: torch.Tensor) -> bool:
    """True if a parameter is split over ranks (FSDP, tensor parallel)."""
    return _is_sharded_kind(type(parameter))


@cache
def _is_sharded_kind(kind: type) -> bool:
    # By name: DTensor takes a while to import, and few models have one.
    return any(base.__name__ in ("DTensor", "FlatParameter") for base in kind.__mro__)
