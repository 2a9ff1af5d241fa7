"""The gradients that scores are made of: over several batches, the model left as found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import length_hint
from typing import Any, cast

import torch
from torch import nn

from snip.anatomy.parameters import Predicate, require_prunable
from snip.anatomy.undisturbed import batch_norm_in, undisturbed
from snip.common.checks import all_finite
from snip.common.errors import InputError
from snip.common.memory import in_no_other_hands
from snip.common.progress import track
from snip.scoring.batches import (
    LossFn,
    as_batches,
    batch_size,
    checked_loss,
    checked_loss_fn,
)
from snip.scoring.settings import Scoring, checked_scoring

LARGE = 1 << 16  # elements from which on a copy takes longer than to ask who else has the memory
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
    sensitivity: bool = False,
    derivative: Derivative = gradient,
) -> Scores:
    """dL/dw per parameter name over all batches; the model and its `.grad` are left as found.

    The result is the mean of the gradients with "abs_of_sum", and the mean or moving average of
    their absolute values otherwise. It is in float32 or wider, and the caller may write into it.
    With `sensitivity` it is the absolute value of that of w * dL/dw, without a further look at
    every element. Another `derivative` than the gradient is added up in the same way.
    """
    scoring = checked_scoring(scoring)
    chosen = require_prunable(model, params)
    loss_fn = checked_loss_fn(loss_fn)
    mean = _Mean(scoring, sensitivity)
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

    def __init__(self, scoring: Scoring, sensitivity: bool) -> None:
        self.scoring, self.sensitivity = scoring, sensitivity
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
            own = _popped(gradients, parameter)
            own = own.mul_(parameter.detach()) if self.sensitivity else own
            own = own if signed else own.abs_()
            self.values[name] = self.values[name].lerp_(own, share) if name in self.values else own

    def finished(self, params: Mapping[str, nn.Parameter]) -> Scores:
        if not self.values:
            raise InputError("there were no batches: give at least one (an exhausted generator?).")
        for name in params:
            value = self.values[name].abs_() if self.sensitivity else self.values[name]
            if not all_finite(value):
                raise InputError(
                    f"the gradient of {name!r} is NaN or infinite although the loss is finite: "
                    "lower the scale of the initialisation, or score in float32."
                )
        return {name: self.values[name] for name in params}


def _popped(gradients: list[torch.Tensor | None], parameter: nn.Parameter) -> torch.Tensor:
    """The last gradient to write into, in at least float32; zero where the loss does not reach."""
    wide = torch.promote_types(parameter.dtype, torch.float32)
    if _is_ours(gradients, wide):
        # Fresh memory for a copy would take longer than to compute the score.
        return cast(torch.Tensor, gradients.pop()).detach()
    gradient = gradients.pop()
    if gradient is None:
        return torch.zeros_like(parameter, dtype=wide, memory_format=torch.contiguous_format)
    dense = gradient.detach().to_dense()
    return dense.to(wide, copy=True, memory_format=torch.contiguous_format)


def _is_ours(gradients: list[torch.Tensor | None], dtype: torch.dtype) -> bool:
    """Whether the last gradient may be written into as it is.

    Autograd may hand out the same memory for two parameters, and a user's hook may keep it.
    """
    last = gradients[-1]
    if last is None or last.numel() < LARGE or last.layout != torch.strided:
        return False
    plain = last.device.type == "cpu" and last.dtype == dtype and last.is_contiguous()
    del last  # which would be one more that has it
    return plain and in_no_other_hands(cast(list[torch.Tensor], gradients))


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
