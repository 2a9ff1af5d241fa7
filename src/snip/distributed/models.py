"""Models that several processes share: replicas of DDP, or the parts of FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import nn

from snip.anatomy.parameters import is_compiled, is_sharded, unwrap
from snip.common.errors import InputError
from snip.distributed.ranks import ALONE, Ranks, answered
from snip.distributed.shards import ranks_of_tensors

# How processes share a model: whole in each, or a part in each.
REPLICATED, SHARDED = "DistributedDataParallel", "fully_shard"
DDP = nn.parallel.DistributedDataParallel
_REPLICA: ContextVar[tuple[nn.Module, Ranks] | None] = ContextVar("replica", default=None)


@contextmanager
def replica(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Inside the block a plain module is known as one that these processes hold a replica of each.

    For trainers, which wrap the model in DDP elsewhere. A sharded model remains one.
    """
    before = _REPLICA.set(None if ranks.alone else (unwrap(model), ranks))
    try:
        yield
    finally:
        _REPLICA.reset(before)


def ranks_of(model: nn.Module) -> Ranks:
    """The processes that share a model; this one alone if it is an ordinary module."""
    for module in _wrappers(model):
        if isinstance(module, DDP):
            return Ranks(module.process_group)
    split = {name: p for name, p in unwrap(model).named_parameters() if is_sharded(p)}
    return ranks_of_tensors(split) if split else _ranks_of_replica(model) or ALONE


def sharing(model: nn.Module) -> str | None:
    """REPLICATED, SHARDED, or None for an ordinary module. What cannot be taken is refused."""
    _refuse_fsdp1(model)
    plain = unwrap(model)
    split = {name: p for name, p in plain.named_parameters() if is_sharded(p)}
    if split:
        ranks_of_tensors(dict(plain.named_parameters()))
        roots = [name for name, module in plain.named_modules() if _is_fsdp(module)]
        for name in split:
            if not any(name.startswith(f"{root}." if root else "") for root in roots):
                raise InputError(
                    f"{name!r} is a DTensor of a layer that fully_shard did not wrap (tensor "
                    "parallel?), which is not supported: use fully_shard alone, or DDP."
                )
        return SHARDED
    wrapped = any(isinstance(module, DDP) for module in _wrappers(model))
    return REPLICATED if wrapped or _ranks_of_replica(model) else None


def inner(model: nn.Module) -> nn.Module:
    """The model that a process computes with by itself: without DDP, whose forward and backward
    passes talk to other processes."""
    return unwrap(model) if any(isinstance(m, DDP) for m in _wrappers(model)) else model


@contextmanager
def backward_aside(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Inside the block backward passes of FSDP2 may write into `.grad`, which then comes back.

    Its gradients are had in no other way: they are summed over processes on their way there. What
    was gathered of other processes' parts when a pass fails is let go.
    """
    parameters = list(unwrap(model).parameters())
    before = [parameter.grad for parameter in parameters]
    try:
        with answered(ranks):
            yield
    finally:
        for module in unwrap(model).modules():
            if _is_fsdp(module):
                cast(Any, module).reshard()
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = gradient


def gradient_by_backward(loss: torch.Tensor, weights: Any) -> list[torch.Tensor | None]:
    """The mean over processes of dL/dw, of which each gets its part."""
    for weight in weights:
        weight.grad = None
    loss.backward()
    found = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None  # so that whoever has used a gradient up can free it
    return found


def _wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """The model and what it wraps, from outside to the user's own module."""
    while True:
        yield model
        if isinstance(model, (DDP, nn.DataParallel)):
            model = model.module
        elif is_compiled(model):
            model = cast(nn.Module, model._orig_mod)
        else:
            return


def _ranks_of_replica(model: nn.Module) -> Ranks | None:
    known = _REPLICA.get()
    return known[1] if known is not None and unwrap(model) is known[0] else None


def _is_fsdp(module: nn.Module) -> bool:
    """Whether `fully_shard` wrapped it; by name, so that FSDP is not imported for the question."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _refuse_fsdp1(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(module).__mro__):
            raise InputError(
                f"{name or 'the model'!r} is wrapped in FSDP1 (FullyShardedDataParallel), which is "
                "not supported: use torch.distributed.fsdp.fully_shard (FSDP2), or DDP."
            )
