"""Models in wrappers: DDP and FSDP2, which ranks share, DataParallel and torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import torch
from torch import nn

from snip.common.errors import InputError, KindError
from snip.distributed.ranks import ALONE, Ranks, answered
from snip.distributed.shards import FSDP1, is_sharded, ranks_of_tensors

# Ways to share a model: a replica on each rank (DDP), or a shard of it (FSDP2).
REPLICATED, SHARDED = "DistributedDataParallel", "fully_shard"
DDP = nn.parallel.DistributedDataParallel
# Where FSDP2 gathers gradients of a wider kind; from torch 2.15 on they are in `.grad` as well.
WIDER = "unsharded_accumulated_grad"


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
    """Module to call while scoring; DDP is stripped so that no collective runs."""
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


@contextmanager
def backward_aside(model: nn.Module, ranks: Ranks) -> Iterator[None]:
    """Inside the block backward passes of FSDP2 may write into `.grad`, which then comes back.

    FSDP2 sums gradients over processes only on their way into `.grad`: torch.autograd.grad would
    not give them. Hooks that wait there, such as an optimiser's that steps in the backward pass,
    are not called. What was gathered of other processes' parts when a pass fails is let go.
    """
    parameters = list(unwrap(model).parameters())
    gradients = [parameter.grad for parameter in parameters]
    waiting = [p._post_accumulate_grad_hooks or {} for p in parameters]
    hooks = [dict(theirs) for theirs in waiting]
    for theirs in waiting:
        theirs.clear()
    _forget_gradients(parameters)
    try:
        with answered(ranks), _synchronised(unwrap(model)):
            yield
    finally:
        resharded(model)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for theirs, before in zip(waiting, hooks, strict=True):
            theirs.update(before)


@contextmanager
def _synchronised(model: nn.Module) -> Iterator[None]:
    """Let FSDP2 sum gradients over processes, also where the user has switched that off.

    What such a user has gathered so far without it waits outside, as `.grad` does.
    """
    modules = [module for module in model.modules() if is_fsdp(module)]
    groups = [group for module in modules for group in _fsdp_groups(module)]
    switches = [(group.reduce_grads, group.all_reduce_grads) for group in groups]
    waiting = [(one, _taken(one)) for group in groups for one in group.fsdp_params]
    for module in modules:
        cast(Any, module).set_requires_gradient_sync(True, recurse=False)
    try:
        yield
    finally:
        for group, (reduce, all_reduce) in zip(groups, switches, strict=True):
            group.reduce_grads, group.all_reduce_grads = reduce, all_reduce
        for parameter, (own, wider) in waiting:
            if own is not None:
                parameter._unsharded_param.grad = own
            if WIDER in vars(parameter):
                setattr(parameter, WIDER, wider)


def _taken(parameter: Any) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Take the gradients that a parameter of FSDP2 has whole: of its own kind, and a wider one."""
    whole = getattr(parameter, "_unsharded_param", None)  # missing before the first forward
    found = None if whole is None else whole.grad, vars(parameter).get(WIDER)
    if whole is not None:
        whole.grad = None
    if WIDER in vars(parameter):
        setattr(parameter, WIDER, None)
    return found


def _fsdp_groups(module: nn.Module) -> list[Any]:
    """FSDP2's groups of a module's parameters; torch can set their options and not read them.

    Older ones have one group, or None.
    """
    state = cast(Any, module)._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def gradient_by_backward(
    model: nn.Module, loss: torch.Tensor, weights: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The mean over processes of dL/dw, of which each gets its part. For `backward_aside`."""
    loss.backward()
    found = [weight.grad for weight in weights]
    # All of them, also of parameters that do not compete: nobody else frees those.
    _forget_gradients(unwrap(model).parameters())
    return found


def _forget_gradients(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None
