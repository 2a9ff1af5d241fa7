"""One step of training: by torch, or all of it in native calls where the network allows it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from snip.common.errors import InputError
from snip.engine.fused.optimizers import is_watched
from snip.engine.fused.program import Program
from snip.engine.fused.straight import Straight, straight_of
from snip.engine.fused.update import RULES, Update
from snip.engine.kernels.straight import Gradients
from snip.engine.recording import is_followed
from snip.network.untouched import hooked

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
    and the update of SGD, Adam or AdamW are two native calls; torch computes anything else, with
    the same result.
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
        rule = RULES.get(type(optimizer))
        self._update = None if rule is None else Update(rule)
        self._views: dict[nn.Parameter, torch.Tensor] = {}  # each parameter's part of the gradients

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
        """The mean loss and the number of wrong answers."""
        if not self._prepared(images, labels):
            return train_step(self.model, self.optimizer, images, labels)
        assert self._gradients is not None
        outcome = self._gradients.fill(images.contiguous(), labels.contiguous())
        if outcome.strange:  # labels to ignore, or wrong ones, which torch refuses in words
            return train_step(self.model, self.optimizer, images, labels)
        if math.isfinite(outcome.loss):
            self._take_step()
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
            self._views = {
                p: self._gradients.total[offset : offset + p.numel()].view(p.shape)
                for p, offset in self._program.places.items()
            }

    def _take_step(self) -> None:
        """The optimiser's step on the gradients: native where that is known, torch's otherwise."""
        native = self._update is not None and not is_watched(self.optimizer)
        if native and not _has_step_of_its_own(self.optimizer):
            assert self._update is not None
            if self._update.take(self.optimizer, self._views.get):
                # What torch.optim.lr_scheduler looks for before it moves on.
                self.optimizer._opt_called = True  # type: ignore[attr-defined]
                return
        self.optimizer.zero_grad(set_to_none=True)
        for p, gradient in self._views.items():
            p.grad = gradient.clone()
        self.optimizer.step()


def _has_step_of_its_own(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` was replaced on this very optimiser, by anyone but a rate's schedule.

    torch.optim.lr_scheduler replaces it by a function that notes the call and does the same.
    """
    step = vars(optimizer).get("step")
    by_schedule = hasattr(step, "_wrapped_by_lr_sched")
    return step is not None and not (by_schedule and step.__wrapped__ is type(optimizer).step)


def _awaited(parameter: nn.Parameter) -> bool:
    """Whether hooks on a parameter wait for its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
