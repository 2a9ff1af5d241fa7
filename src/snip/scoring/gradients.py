"""The gradients that scores are made of: over several batches, the model left as found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from operator import length_hint
from typing import Any, cast

import torch
from torch import nn

from snip.common.checks import all_finite
from snip.common.console import track
from snip.common.errors import InputError
from snip.common.memory import is_sole_owner
from snip.distributed.ranks import Ranks, no_batches, steps
from snip.distributed.shards import local, sharded_like
from snip.distributed.wrapped import backward_aside, gradient_by_backward
from snip.network.calls import copied
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.network.untouched import batch_norm_in, undisturbed
from snip.scoring.batches import (
    Batch,
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
    model: nn.Module | Network,
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
    every element. Another `derivative` than the gradient is added up in the same way. If several
    processes share the model, the batches are those of all of them.
    """
    scoring = checked_scoring(scoring)
    network = Network.of(model, params)
    ranks, sharded = network.ranks, network.sharded
    competing = network.require_competing()
    loss_fn = checked_loss_fn(loss_fn)
    called, mean = network.called, _Mean(scoring, sensitivity)
    if sharded:
        derivative = _sharded(derivative, called)

    def weight_of(index: int, batch: Batch) -> int:
        size = batch_size(batch, scoring.batch_dim)
        if size == 0:
            raise InputError(f"batch {index} has no samples: leave empty batches out.")
        return size if scoring.loss_reduction == "mean" else 1

    given = steps(_tracked(as_batches(batches)), weight_of, ranks, in_step=sharded)
    with (
        # Passes of FSDP2 are made by all processes together; others each makes by itself.
        backward_aside(called, ranks) if sharded else ranks.raise_on_all(),
        undisturbed(called),
        batch_norm_in(called, scoring.batch_norm),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        for index, step in enumerate(given):
            # Nothing here has a name: each batch's graph is freed before the next is computed.
            mean.add(
                competing,
                _derivatives(
                    derivative,
                    _scaled(loss_fn(called, copied(step.batch)), index, step.scale, ranks, sharded),
                    competing,
                ),
                step.weight,
            )
        mean.require_some()
    if not sharded:
        mean.over(ranks)
    return mean.finished(competing, ranks)


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
        weight: int,
    ) -> None:
        self.weight += weight
        share = 1 - self.scoring.decay if self.scoring.reduction == "ema" else weight / self.weight
        signed = self.scoring.reduction == "abs_of_sum"
        for name, parameter in reversed(list(params.items())):
            # Popped as it is used up: each layer's gradient is freed before the next is copied, so
            # that scoring needs hardly more memory than the backward pass did.
            values = local(parameter)
            own = _popped(gradients, values)
            own = own.mul_(values) if self.sensitivity else own
            own = own if signed else own.abs_()
            self.values[name] = self.values[name].lerp_(own, share) if name in self.values else own

    def require_some(self) -> None:
        """Refuse to go on without any batch."""
        if not self.values:
            raise no_batches()

    def over(self, ranks: Ranks) -> None:
        """From the mean over this process's data to that over the data of all of them."""
        if ranks.alone:
            return
        share = self.weight / sum(ranks.all_gather(self.weight))
        for value in self.values.values():
            ranks.all_reduce(value.mul_(share))

    def finished(self, params: Mapping[str, nn.Parameter], ranks: Ranks) -> Scores:
        """The mean of each parameter, split over processes as the parameter is."""
        with ranks.raise_on_all():
            for name in params:
                value = self.values[name].abs_() if self.sensitivity else self.values[name]
                if not all_finite(value):
                    raise InputError(
                        f"the gradient of {name!r} is NaN or infinite although the loss is finite: "
                        "lower the scale of the initialisation, or score in float32."
                    )
        return {name: sharded_like(self.values[name], p) for name, p in params.items()}


def _sharded(derivative: Derivative, model: nn.Module) -> Derivative:
    """The derivative of a sharded model, of which only the gradient can be had."""
    if derivative is not gradient:
        raise InputError(
            "the model is sharded (fully_shard), where only first derivatives can be had: use "
            "another method, such as 'snip', or DDP."
        )
    return partial(gradient_by_backward, model)


def _scaled(
    loss: torch.Tensor, index: int, scale: float, ranks: Ranks, in_step: bool
) -> torch.Tensor:
    """The loss, checked: by all processes before any goes on, if they make their passes in step."""
    with ranks.raise_on_all() if in_step else nullcontext():
        loss = checked_loss(loss, index)
    return loss if scale == 1 else loss * scale


def _popped(gradients: list[torch.Tensor | None], values: torch.Tensor) -> torch.Tensor:
    """The last gradient to write into, in at least float32; zero where the loss does not reach."""
    wide = torch.promote_types(values.dtype, torch.float32)
    if _is_ours(gradients, wide):
        # Fresh memory for a copy would take longer than to compute the score.
        return cast(torch.Tensor, gradients.pop()).detach()
    gradient = gradients.pop()
    if gradient is None:
        return torch.zeros_like(values, dtype=wide, memory_format=torch.contiguous_format)
    dense = local(gradient.to_dense() if gradient.is_sparse else gradient)
    return dense.to(wide, copy=True, memory_format=torch.contiguous_format)


def _is_ours(gradients: list[torch.Tensor | None], dtype: torch.dtype) -> bool:
    """True if the last gradient may be written into as it is.

    Autograd may hand out the same memory for two parameters, and a user's hook may keep it.
    """
    last = gradients[-1]
    if last is None or last.numel() < LARGE or last.layout != torch.strided:
        return False
    plain = last.device.type == "cpu" and last.dtype == dtype and last.is_contiguous()
    del last  # which would be one more that has it
    return plain and is_sole_owner(cast(list[torch.Tensor], gradients))


def _derivatives(
    derivative: Derivative, loss: torch.Tensor, params: Mapping[str, nn.Parameter]
) -> list[torch.Tensor | None]:
    """The derivative of one batch's loss; None for a parameter that the loss ignores."""
    derivatives = list(derivative(loss.squeeze(), list(params.values())))
    if all(one is None for one in derivatives):
        raise InputError(
            "the loss does not depend on any prunable parameter: check that loss_fn uses the "
            "model it is given, and that the layers are not detached."
        )
    return derivatives


def _tracked(batches: Any) -> Any:
    return track(batches, description="scoring", total=length_hint(batches) or None)
