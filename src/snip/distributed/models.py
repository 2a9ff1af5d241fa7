"""Models that several processes share: replicas of DDP, or the parts of FSDP2."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from torch import nn

from snip.common.errors import InputError
from snip.distributed.ranks import ALONE, Ranks
from snip.distributed.shards import FSDP1, ranks_of_tensors
from snip.distributed.wrappers import is_sharded, unwrap, wrappers

# How processes share a model: whole in each, or a part in each.
REPLICATED, SHARDED = "DistributedDataParallel", "fully_shard"
DDP = nn.parallel.DistributedDataParallel


def ranks_of(model: nn.Module) -> Ranks:
    """The processes that share a model; this one alone if it is an ordinary module."""
    for module in wrappers(model):
        if isinstance(module, DDP):
            return Ranks(module.process_group)
    split = {name: p for name, p in resharded(model).named_parameters() if is_sharded(p)}
    return ranks_of_tensors(split) if split else ALONE


def sharing(model: nn.Module) -> str | None:
    """REPLICATED, SHARDED, or None for an ordinary module. What cannot be taken is refused."""
    plain = resharded(model)
    _refuse_others(model, plain)
    split = {name: p for name, p in plain.named_parameters() if is_sharded(p)}
    if split:
        ranks_of_tensors(dict(plain.named_parameters()))
        roots = [name for name, module in plain.named_modules() if is_fsdp(module)]
        for name in split:
            if not any(name.startswith(f"{root}." if root else "") for root in roots):
                raise InputError(
                    f"{name!r} is a DTensor of a layer that fully_shard did not wrap (tensor "
                    "parallel?), which is not supported: use fully_shard alone, or DDP."
                )
        return SHARDED
    return REPLICATED if _is_replicated(model) else None


def resharded(model: nn.Module) -> nn.Module:
    """The user's own module, each of whose parameters is this process's part of it under FSDP2.

    After a forward without a backward, such as an evaluation, the outermost module of FSDP2 still
    has its parameters whole. Those are temporary copies: what is written into them is lost.
    """
    plain = unwrap(model)
    for module in plain.modules():
        if is_fsdp(module):
            cast(Any, module).reshard()
    return plain


def require_whole(model: nn.Module, function: str) -> None:
    """Refuse a model of which each process has a part."""
    if any(is_fsdp(module) for module in unwrap(model).modules()):
        raise InputError(
            f"{function} wants a whole model, and of this {type(unwrap(model)).__name__} each "
            "process has a part (fully_shard): load its weights into an ordinary one "
            "(torch.distributed.checkpoint.state_dict.get_model_state_dict with "
            "StateDictOptions(full_state_dict=True)) and call it with that."
        )


def require_unwrapped(model: nn.Module, function: str) -> None:
    """Refuse a model that trains in several processes, which what is made of it would not."""
    require_whole(model, function)
    processes = ranks_of(model).size
    if processes > 1:
        raise InputError(
            f"the model is wrapped in DDP for {processes} processes, and what {function} gives is "
            "not: their weights would drift apart. Wrap it afterwards: "
            f"DDP({function}(model.module, batch))."
        )


def inner(model: nn.Module) -> nn.Module:
    """The model that a process computes with by itself: without DDP, whose forward and backward
    passes talk to other processes."""
    return unwrap(model) if _is_replicated(model) else model


def _is_replicated(model: nn.Module) -> bool:
    return any(isinstance(module, DDP) for module in wrappers(model))


def is_fsdp(module: nn.Module) -> bool:
    """True if `fully_shard` wrapped the module."""
    return _is_kind(cast(Any, type(module)), "FSDPModule")


@cache
def _is_kind(kind: type, name: str) -> bool:
    """True for a class of this name, or one derived from it: FSDP is not imported to ask."""
    return any(base.__name__ == name for base in kind.__mro__)


def _refuse_others(model: nn.Module, plain: nn.Module) -> None:
    """Refuse FSDP1, and DDP of a part of the model: each process would score by itself."""
    for name, module in model.named_modules():
        if _is_kind(cast(Any, type(module)), "FullyShardedDataParallel"):
            raise InputError(f"{name or 'the model'!r} is wrapped in {FSDP1}")
    for name, module in plain.named_modules():
        if isinstance(module, DDP):
            raise InputError(
                f"{name!r} inside the model is wrapped in {REPLICATED}, and what is around it is "
                f"not: wrap the whole model ({REPLICATED}(model)), or prune the part that is "
                f"wrapped (snip.prune(model.{name}, ...))."
            )
