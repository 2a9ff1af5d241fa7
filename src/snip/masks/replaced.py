"""Parameters that took the place of pruned ones, such as the DTensors that `fully_shard` makes.

A mask is on a parameter, and stays on it when a module gets another one. Before the first step of
an optimiser, and whenever a model is asked for its masks, modules are compared with what they held.
A DTensor of the same shape is this process's part of the same weights and gets the mask. Anything
else may be meant to be dense, so it is only named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import nn

from snip.anatomy.parameters import is_sharded
from snip.common.errors import listed, warn
from snip.distributed.shards import check_split
from snip.masks.keep import RIDER
from snip.masks.watching import before_every_step


class Holder(Protocol):
    """What holds the masks of one module's own parameters."""

    module: Callable[[], nn.Module | None]
    pairs: dict[str, tuple[Any, torch.Tensor]]  # parameter and mask, by the parameter's key

    def rebind(self, module: nn.Module) -> None:
        """Put the masks on the parameters that the module has now."""


_holders: WeakSet[Any] = WeakSet()
# Optimisers that have made a step since the last mask was put on a parameter. A later replacement
# would need another optimiser, so that their steps need not look again.
_looked: WeakSet[torch.optim.Optimizer] = WeakSet()


def watch(holder: Holder) -> None:
    """Look before the first step of an optimiser whether the module has other parameters."""
    _holders.add(holder)
    _looked.clear()
    before_every_step(before_step)


def before_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Put masks on DTensors in time, and warn of other parameters that the optimiser will move."""
    if torch.compiler.is_compiling() or optimizer in _looked:
        return
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    lost = []
    for holder in list(_holders):
        module = holder.module()
        # Of other models, which may be in any state, this optimiser has nothing to say.
        if module is not None and any(id(p) in trained for p in module._parameters.values()):
            named = ((f"{type(module).__name__}.{key}", key) for key in follow(holder, module))
            lost += [name for name, key in named if id(module._parameters[key]) in trained]
    warn_of(lost)
    _looked.add(optimizer)


def follow(holder: Holder, module: nn.Module) -> list[str]:
    """Let the masks follow to DTensors; the keys of other parameters that are not the held ones."""
    own = module._parameters
    # A parameter that torch swapped for its conversion, to another device say, has no attributes.
    if any(own.get(key) is p and RIDER not in p.__dict__ for key, (p, _) in holder.pairs.items()):
        holder.rebind(module)
    new: dict[str, Any] = {
        key: own[key]
        for key, (parameter, _) in holder.pairs.items()
        if own.get(key, parameter) is not parameter and own[key] is not None
    }
    sharded = [key for key, parameter in new.items() if is_sharded(parameter)]
    if any(new[key].shape == holder.pairs[key][1].shape for key in sharded):
        for key in sharded:
            check_split(key, new[key])
        holder.rebind(module)
    # The other way round, FSDP2 has its parameters whole for a while: after an evaluation, say.
    return [k for k in new if k not in sharded and not is_sharded(holder.pairs[k][0])]


def warn_of(lost: list[str]) -> None:
    """Name parameters that have no mask any more."""
    if lost:
        warn(
            f"{listed(lost)} was replaced by another parameter after the pruning, whose zeros "
            "nobody holds: call masks.apply(model) after such a change."
        )
