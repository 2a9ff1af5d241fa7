"""One step of training: by torch, or all of it in native calls where the network allows it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from snip.anatomy.hooks import hooked
from snip.common.errors import InputError
from snip.engine.fused.program import Program
from snip.engine.fused.straight import Straight, straight_of
from snip.engine.fused.update import Update
from snip.engine.kernels.straight import Gradients
from snip.engine.recording import is_followed

IGNORED = -100  # cross-entropy's ignore_index

# step(model, optimizer, images, labels) -> (mean loss, wrong answers)
Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], tuple[float, int]]
# The same for one model and optimiser: step(images, labels)
TakeStep = Callable[[torch.Tensor, torch.Tensor], tuple[float, int]]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> tuple[float, int]:
    """One step of cross-entropy; returns the mean loss and the number of wrong answers.

    A loss that is not finite leaves the weights alone.
    """
    optimizer.zero_grad(set_to_none=True)
    logits = model(images)
    loss = F.cross_entropy(logits, labels)
    value, wrong = loss.item(), wrong_answers(logits, labels)  # all that may fail, before any moves
    if math.isfinite(value):
        loss.backward()
        optimizer.step()
    return value, wrong


def wrong_answers(logits: torch.Tensor, labels: torch.Tensor) -> int:
    """How many rows have their highest logit elsewhere than at the label.

    Of probabilities for labels the highest counts, and labels that cross-entropy ignores are never
    wrong.
    """
    classes = 0 if logits.ndim == 1 else 1  # a lone sample has no dimension for the batch
    answers = logits.argmax(classes)
    if labels.is_floating_point():
        return int((answers != labels.argmax(classes)).sum().item())
    return int(((answers != labels) & (labels.long() != IGNORED)).sum().item())


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> TakeStep:
    """A function that takes one step of cross-entropy: step(images, labels) -> (loss, wrong).

    For an accelerated network whose layers follow one another in a line, forward, loss, backward
    and SGD's update are two native calls; torch computes anything else, with the same result.
    """
    own = set(model.parameters())
    if not any(p in own for group in optimizer.param_groups for p in group["params"]):
        raise InputError(
            "the optimiser has none of this model's parameters: make it after snip.accelerate, "
            "whose network has parameters of its own."
        )
    return FusedStep(model, optimizer)


class FusedStep:
    """The step of one model and optimiser, with what it prepared for the last batch size."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        self._shape: torch.Size | None = None
        self._program: Program | None = None
        self._gradients: Gradients | None = None
        self._update: Update | None = None

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
        """The mean loss and the number of wrong answers."""
        if not self._prepared(images, labels):
            return train_step(self.model, self.optimizer, images, labels)
        assert self._gradients is not None
        assert self._update is not None
        outcome = self._gradients.fill(images.contiguous(), labels.contiguous())
        if outcome.strange:  # labels to ignore, or wrong ones, which torch refuses in words
            return train_step(self.model, self.optimizer, images, labels)
        if math.isfinite(outcome.loss):
            self._update(self._gradients.total)
        return outcome.loss, outcome.wrong

    def _prepared(self, images: torch.Tensor, labels: torch.Tensor) -> bool:
        """Whether native calls can take this batch; prepares them for a new shape of batch."""
        straight = straight_of(self.model)
        if straight is None or hooked(self.model) or not straight.takes_batch(images, labels):
            return False
        # Without gradients there is no step, and nobody may follow one: both are said in words.
        if not torch.is_grad_enabled() or is_followed():
            return False
        if images.shape != self._shape or self._program is None or not self._program.holds():
            self._prepare(straight, images)
        return self._program is not None and not any(map(_awaited, self._program.places))

    def _prepare(self, straight: Straight, images: torch.Tensor) -> None:
        self._shape = images.shape
        self._program = straight.training_program(self.model, images.shape)
        if self._program is not None:
            self._gradients = Gradients(self._program.native, len(images))
            self._update = Update(self._program, self.optimizer)


def _awaited(parameter: nn.Parameter) -> bool:
    """Whether hooks on a parameter wait for its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
