"""Native code has first gradients only: whoever differentiates those is told so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from snip.common.errors import InputError

TWICE = (
    "Gradients of gradients (a gradient penalty, a second derivative) cannot be had from an "
    "accelerated network: its native code has first gradients only. Use snip.densify(model) there."
)

Backward = Callable[..., tuple[Any, ...]]


def once_differentiable(backward: Backward) -> Backward:
    """A backward pass in native code, whose gradients refuse to be differentiated.

    Torch's decorator of this name hands them out as constants if the incoming gradient is one, so
    that a gradient penalty would silently train nothing.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        if not torch.is_grad_enabled():  # as always but with `create_graph=True`
            return backward(ctx, *incoming)
        saved = ctx.saved_tensors  # read once: activation checkpointing forgets them then
        read = {"saved_tensors": saved, "needs_input_grad": ctx.needs_input_grad}
        with torch.no_grad():
            gradients = backward(SimpleNamespace(**vars(ctx), **read), *incoming)
        # What they were computed from, for torch to find the way from them to any parameter.
        sources = [t for t in (*saved, *incoming) if t is not None and t.requires_grad]
        return tuple(None if g is None else _final(g, sources) for g in gradients)

    return wrapper


def _final(gradient: torch.Tensor, sources: list[torch.Tensor]) -> torch.Tensor:
    """The gradient as it is, which refuses even where no source requires a gradient."""
    made: torch.Tensor = _Final.apply(gradient.detach().requires_grad_(), *sources)
    return made


class _Final(torch.autograd.Function):
    """A gradient, as it is, that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        return gradient.detach()

    @staticmethod
    def backward(ctx: Any, *_incoming: torch.Tensor) -> Any:
        raise InputError(TWICE)
