"""Backward passes of FSDP2 for scores alone: the user's gradients are left as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from snip.distributed.models import is_fsdp, resharded
from snip.distributed.ranks import Ranks, answered
from snip.distributed.wrappers import unwrap

# Where FSDP2 gathers gradients of a wider kind; from torch 2.15 on they are in `.grad` as well.
WIDER = "unsharded_accumulated_grad"


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
    """What FSDP2 knows of a module's parameters; torch has ways to set it and none to ask for it.

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
