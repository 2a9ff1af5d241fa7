"""Scores: how much the loss feels the removal of each connection (Eq. 4-6)."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from operator import length_hint
from typing import Any

import torch
from torch import nn

from snip.anatomy.parameters import Predicate, require_prunable
from snip.anatomy.undisturbed import set_batch_norm, undisturbed
from snip.common.errors import InputError, nearest
from snip.common.progress import track
from snip.scoring.batches import (
    Batch,
    LossFn,
    as_batches,
    batch_size,
    checked_loss,
    checked_loss_fn,
)

Scores = dict[str, torch.Tensor]

# |sum of g| and sum of |g| are different things: the first asks what the whole data says of a
# connection, the second lets batches that disagree both count. One batch: all three agree.
REDUCTIONS = ("abs_of_sum", "sum_of_abs", "ema")


def connection_sensitivity(
    model: nn.Module,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    reduction: str = "abs_of_sum",
    decay: float = 0.9,
    batch_norm: str = "eval",
    loss_reduction: str = "mean",
    batch_dim: int = 0,
) -> Scores:
    """|dL/dc| at c = 1, which is |w * dL/dw|, per parameter name; the model is left as found.

    `loss_reduction` says whether `loss_fn` is a mean over its batch (then batches are weighted
    by their size, so that "abs_of_sum" does not depend on how the data is cut) or a sum; the size
    is that of dimension `batch_dim` of the batch's first tensor (1 for time-first sequences).
    `decay` is the weight of the past in "ema".
    """
    if reduction not in REDUCTIONS:
        raise nearest("reduction", reduction, REDUCTIONS)
    if loss_reduction not in ("mean", "sum"):
        raise nearest("loss_reduction", loss_reduction, ("mean", "sum"))
    if not isinstance(decay, Real) or not 0 <= decay < 1:
        raise InputError(f"decay is {decay!r}: the moving average needs a number in [0, 1).")
    chosen = require_prunable(model, params)
    loss_fn = checked_loss_fn(loss_fn)
    total = _Total(chosen, reduction, decay)
    with undisturbed(model), torch.inference_mode(False), torch.enable_grad():
        set_batch_norm(model, batch_norm)
        for index, batch in enumerate(_tracked(as_batches(batches))):
            gradients = _gradients(model, batch, loss_fn, chosen, index)
            total.add(gradients, batch_size(batch, batch_dim) if loss_reduction == "mean" else 1)
    return total.scores()


def normalize(scores: Mapping[str, torch.Tensor]) -> Scores:
    """Eq. 6: s = |g| / sum of |g|. The ranking does not change; `s` is for people to read."""
    total = sum(float(score.sum(dtype=torch.float64)) for score in scores.values())
    if total == 0:
        raise InputError("every score is zero: there is nothing to divide by.")
    return {name: score / total for name, score in scores.items()}


class _Total:
    """Gradients of several batches on their way to one score per connection."""

    def __init__(self, params: Mapping[str, nn.Parameter], reduction: str, decay: float) -> None:
        self.params, self.reduction, self.decay = params, reduction, decay
        self.sums: Scores = {}
        self.weight = 0

    def add(self, gradients: list[torch.Tensor | None], weight: int) -> None:
        first = not self.sums
        self.weight += weight
        for name, parameter in reversed(list(self.params.items())):
            # Popped as it is used up: each layer's gradient is freed before the next score
            # is made, so that scoring needs hardly more memory than the backward pass did.
            term = _term(parameter, gradients.pop(), signed=self.reduction == "abs_of_sum")
            if self.reduction == "ema":
                self.sums[name] = term if first else self.sums[name].lerp_(term, 1 - self.decay)
            elif first:
                self.sums[name] = term if weight == 1 else term.mul_(weight)
            else:
                self.sums[name].add_(term, alpha=weight)

    def scores(self) -> Scores:
        if not self.sums:
            raise InputError("there were no batches: give at least one (an exhausted generator?).")
        scores = {}
        for name in self.params:
            score = self.sums.pop(name).abs_()
            scores[name] = score if self.reduction == "ema" else score.div_(self.weight)
            if not torch.isfinite(scores[name]).all():
                raise InputError(
                    f"the gradient of {name!r} is NaN or infinite although the loss is finite: "
                    "lower the scale of the initialisation, or score in float32."
                )
        return scores


def _term(parameter: nn.Parameter, gradient: torch.Tensor | None, *, signed: bool) -> torch.Tensor:
    """w * dL/dw of one batch, in at least float32; zero where the loss does not reach."""
    weight = parameter.detach()
    wide = torch.promote_types(weight.dtype, torch.float32)
    if gradient is None:
        return torch.zeros_like(weight, dtype=wide, memory_format=torch.contiguous_format)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    term = weight.to(wide) * gradient.to(wide)
    return term if signed else term.abs_()


def _gradients(
    model: nn.Module,
    batch: Batch,
    loss_fn: LossFn,
    params: Mapping[str, nn.Parameter],
    index: int,
) -> list[torch.Tensor | None]:
    """dL/dw of one batch without touching `.grad`."""
    loss = checked_loss(loss_fn(model, batch), index)
    gradients = torch.autograd.grad(loss.squeeze(), list(params.values()), allow_unused=True)
    if all(gradient is None for gradient in gradients):
        raise InputError(
            "the loss does not depend on any prunable parameter: check that loss_fn uses the "
            "model it is given, and that the layers are not detached."
        )
    return list(gradients)


def _tracked(batches: Any) -> Any:
    return track(batches, description="scoring", total=length_hint(batches) or None)
