"""Whether torch follows what is computed: native code would be missing from what it writes down."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from snip.common.errors import InputError
from snip.engine.kernels.memory import is_fake

RECORDED = (
    "an accelerated network cannot be recorded or transformed (torch.export, torch.jit, make_fx, "
    "torch.func, forward-mode gradients, dispatch modes): what it computes is native code, which "
    "they do not see. Use snip.densify(model) there."
)


def is_followed() -> bool:
    """Whether anything follows torch's operations one by one.

    torch.export and make_fx do it by a dispatch mode, torch.func by a stack of its own, and
    forward-mode gradients by a level.
    """
    if torch._C._len_torch_dispatch_stack() or torch._ops._len_torch_dispatch_stack_pre_dispatch():
        return True
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return bool(torch._C._get_tracing_state()) or forward_ad._current_level >= 0


def refuse_recording(inputs: tuple[Any, ...]) -> None:
    """InputError where torch follows a forward, or where an input has no numbers to read."""
    if is_followed() or any(isinstance(x, torch.Tensor) and is_fake(x) for x in inputs):
        raise InputError(RECORDED)
