"""The gradients that scores are made of: over several batches, the model left as found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import length_hint
from typing import Any

import torch
from torch import nn

from snip.anatomy.parameters import Predicate, require_prunable
from snip.anatomy.undisturbed import batch_norm_in, undisturbed
from snip.common.checks import all_finite
from snip.common.errors import InputError
from snip.common.memory import unwritten
from snip.common.progress import track
from snip.scoring.batches import (
    LossFn,
    as_batches,
    batch_size,
    checked_loss,
    checked_loss_fn,
)
from snip.scoring.settings import Scoring, checked_scoring

Scores = dict[str, torch.Tensor]
# From a loss and weights to something of each weight's shape, or None where the loss ignores it.
Derivative = Callable[[torch.Tensor, Sequence[torch.Tensor]], Sequence[torch.Tensor | None]]


def gradient(loss: torch.Tensor, weights: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """dL/dw without touching `.grad`."""
    return torch.autograd.grad(loss, weights, allow_unused=True)


def accumulated_gradients(
    model: nn.Module,
    batches: Any,
    loss_fn: LossFn | None,
    *,
    params: Predicate | None,
    scoring: Scoring,
    times_weights: bool = False,
    derivative: Derivative = gradient,
) -> Scores:
    """dL/dw per parameter name over all batches; the model and its `.grad` are left as found.

    The result is the mean of the gradients with "abs_of_sum", and the mean or moving average of
    their absolute values otherwise. It is in float32 or wider, and the caller may write into it.
    With `times_weights` it is that of w * dL/dw, without a further look at every element. Another
    `derivative` than the gradient is added up in the same way.
    """
    scoring = checked_scoring(scoring)
    chosen = require_prunable(model, params)
    loss_fn = checked_loss_fn(loss_fn)
    mean = _Mean(scoring, times_weights)
    with (
        undisturbed(model),
        batch_norm_in(model, scoring.batch_norm),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        for index, batch in enumerate(_tracked(as_batches(batches))):
            size = batch_size(batch, scoring.batch_dim)
            if size == 0:
                raise InputError(f"batch {index} has no samples: leave empty batches out.")
            # Nothing here has a name: each batch's graph is freed before the next is computed.
            mean.add(
                chosen,
                _found(derivative, checked_loss(loss_fn(model, batch), index), chosen),
                size,
            )
    return mean.finished(chosen)


class _Mean:
    """The mean of the gradients so far, which every batch moves by its share."""

    def __init__(self, scoring: Scoring, times_weights: bool) -> None:
        self.scoring, self.times_weights = scoring, times_weights
        self.values: Scores = {}
        self.weight = 0

    def add(
        self,
        params: Mapping[str, nn.Parameter],
        gradients: list[torch.Tensor | None],
        samples: int,
    ) -> None:
        weight = samples if self.scoring.loss_reduction == "mean" else 1
        self.weight += weight
        share = 1 - self.scoring.decay if self.scoring.reduction == "ema" else weight / self.weight
        signed = self.scoring.reduction == "abs_of_sum"
        for name, parameter in reversed(list(params.items())):
            # Popped as it is used up: each layer's gradient is freed before the next is copied, so
            # that scoring needs hardly more memory than the backward pass did.
            own = _copied(parameter, gradients.pop(), self.times_weights)
            own = own if signed else own.abs_()
            self.values[name] = self.values[name].lerp_(own, share) if name in self.values else own

    def finished(self, params: Mapping[str, nn.Parameter]) -> Scores:
        if not self.values:
            raise InputError("there were no batches: give at least one (an exhausted generator?).")
        for name in params:
            if not all_finite(self.values[name]):
                raise InputError(
                    f"the gradient of {name!r} is NaN or infinite although the loss is finite: "
                    "lower the scale of the initialisation, or score in float32."
                )
        return {name: self.values[name] for name in params}


def _copied(
    parameter: nn.Parameter, gradient: torch.Tensor | None, times_weights: bool
) -> torch.Tensor:
    """A gradient in memory of its own, in at least float32; zero where the loss does not reach."""
    wide = torch.promote_types(parameter.dtype, torch.float32)
    if gradient is None:
        return torch.zeros_like(parameter, dtype=wide, memory_format=torch.contiguous_format)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    weight = parameter.detach()
    # Autograd may hand out the same memory for two parameters: what is written to is a copy.
    if gradient.device.type != "cpu" or gradient.dtype != torch.float32:
        own = gradient.to(wide, copy=True)
        return own.mul_(weight) if times_weights else own
    own = unwritten(gradient.shape, torch.float32)
    return torch.mul(gradient, weight, out=own) if times_weights else own.copy_(gradient)


def _found(
    derivative: Derivative, loss: torch.Tensor, params: Mapping[str, nn.Parameter]
) -> list[torch.Tensor | None]:
    """The derivative of one batch's loss; None for a parameter that the loss ignores."""
    found = list(derivative(loss.squeeze(), list(params.values())))
    if all(one is None for one in found):
        raise InputError(
            "the loss does not depend on any prunable parameter: check that loss_fn uses the "
            "model it is given, and that the layers are not detached."
        )
    return found


def _tracked(batches: Any) -> Any:
    return track(batches, description="scoring", total=length_hint(batches) or None)
