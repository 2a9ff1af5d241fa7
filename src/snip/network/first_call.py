"""What one process has called the model with, for the others."""

from __future__ import annotations

import pickle
from contextlib import suppress

import torch
from torch import nn

from snip.distributed.ranks import Ranks
from snip.network.calling import Call, mapped
from snip.network.device import device_of


def first_ones_call(ranks: Ranks, call: Call | None, model: nn.Module) -> Call | None:
    """The first process's call, in every process; None if it cannot be sent.

    A user's call may have anything in it, such as a function. Tensors travel by way of the CPU,
    because every process has a device of its own.
    """
    if ranks.alone:
        return call
    packed = None
    if ranks.rank == 0 and call is not None:
        with suppress(Exception):  # whatever the user's objects raise, the others are waiting
            packed = pickle.dumps(mapped(call, lambda tensor: tensor.detach().cpu()))
    packed, found = ranks.first(packed), None
    with suppress(Exception):
        found = pickle.loads(packed)  # of the same program
    if not all(ranks.everyones(found is not None)):
        return None
    device = device_of(model)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device)

    args, kwargs = mapped(found, moved)
    return args, kwargs
