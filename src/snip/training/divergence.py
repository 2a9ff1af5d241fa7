"""Stop a training whose loss or weights are NaN or infinite, and say what to try next."""

from __future__ import annotations

import math

import torch
from torch import nn

from snip.common.errors import InputError
from snip.training.journal import Journal


class DivergenceError(InputError):
    """The loss or a weight is no longer a number."""


def require_finite(what: str, loss: float, done: int, lr: float, journal: Journal) -> None:
    """Stop if a loss is NaN or infinite."""
    if not math.isfinite(loss):
        raise _diverged(f"the {what} is {loss}", done, lr, journal)


@torch.no_grad()
def require_finite_weights(model: nn.Module, done: int, lr: float, journal: Journal) -> None:
    """Stop if a weight is NaN or infinite, so that a checkpoint never holds such a weight.

    The loss would show it one step later, when the last good checkpoint is already replaced.
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise _diverged(f"{name} has values that are not finite", done, lr, journal)


def _diverged(what: str, done: int, lr: float, journal: Journal) -> DivergenceError:
    return DivergenceError(
        f"{what} at iteration {done} (lr {lr:g}): training stopped. Try a smaller lr "
        f"(such as {lr / 10:g}), a lower sparsity or another initializer, and check the data for "
        f"NaN. {journal.last_good()}."
    )
