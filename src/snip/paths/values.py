"""Numbers that follow paths: 0 is "always zero", 1 is "may be something".

The probe runs a network on such numbers and differentiates twice. The first backward pass, from
the outputs, tells which numbers an output depends on; its own derivative, from the inputs, tells
which of them also depend on an input, so that they lie on a path between the two. A bias makes a
unit something, but it is no path from the input; and a product passes x on wherever the other
factor is something, so that gates count too.

Without gradients (`reach`) a number says by its size whether it depends on an input: it is then
huge, and stays so when it is added, averaged and multiplied with what is something.
"""

from __future__ import annotations

from typing import Any

import torch

DTYPE = torch.float32  # sums of ones never round to zero
FOLLOWED = 2.0**62  # depends on an input; its square is still a float32
_FOLLOWED = torch.tensor(FOLLOWED, dtype=DTYPE)  # which makes a float32 of a bool beside it
HUGE = 2.0**40  # from here on a number depends on an input, also as one of a million in a mean
LARGEST_CONSTANT = 2.0**20  # of a constant


class _Something(torch.autograd.Function):
    """1 where a value is not zero, so that products of many layers neither over- nor underflow."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return (x != 0).to(DTYPE)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        # The second pass differentiates the first and must not come back here: a weight that
        # only scales someone else's path (as a constant factor) is not on a path itself.
        return _Reached.apply(gradients[0]) if torch.is_grad_enabled() else None


class _Reached(torch.autograd.Function):
    """1 where the gradient of the first pass is not zero, and likewise that of the second."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return (gradient != 0).to(DTYPE)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return (gradients[0] != 0).to(DTYPE)


def something(x: torch.Tensor) -> torch.Tensor:
    """Bring numbers back to 0 and 1 (or FOLLOWED), after anything that sums or multiplies."""
    if not torch.is_grad_enabled():
        return torch.where(depends(x), _FOLLOWED, x != 0)
    result: torch.Tensor = _Something.apply(x)
    return result


def depends(x: torch.Tensor) -> torch.Tensor:
    """Without gradients: where a number depends on an input."""
    return x >= HUGE


def limited(x: torch.Tensor) -> torch.Tensor:
    """Without gradients: a constant as finite, not negative, and nowhere huge."""
    if not x.is_floating_point():
        return x
    return torch.where(x.isfinite(), x.abs().clamp_max(LARGEST_CONSTANT), 0.0)


def ones(shape: Any, device: torch.device) -> torch.Tensor:
    """A new leaf that is something everywhere."""
    return torch.ones(shape, dtype=DTYPE, device=device, requires_grad=True)


def constant(x: Any) -> Any:
    """A number or constant tensor as non-negative and finite; a followed tensor as it is."""
    if isinstance(x, torch.Tensor):
        if not x.is_floating_point():
            return x
        # Without gradients there is only `reach`, which has seen to its constants already.
        if x.requires_grad or not torch.is_grad_enabled():
            return x.to(DTYPE)
        return torch.where(x.isfinite(), x.abs(), 0).to(DTYPE)
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        size = abs(x) if abs(x) != float("inf") else 0
        return size if torch.is_grad_enabled() else min(size, LARGEST_CONSTANT)
    return x
