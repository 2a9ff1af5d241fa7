"""One step of training: torch's way, or all of it in native calls where the network allows."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from snip.anatomy.hooks import hooked
from snip.common.errors import InputError
from snip.engine.accelerated import Network
from snip.engine.fused.program import Program, Straight
from snip.engine.kernels.library import pointer
from snip.engine.kernels.straight import Gradients, ParameterStruct, sgd_update
from snip.masks.holding import after_step

# step(model, optimizer, images, labels) -> (mean loss, wrong answers)
Step = Callable[[nn.Module, torch.optim.Optimizer, torch.Tensor, torch.Tensor], tuple[float, int]]
# the same of one model and optimiser: step(images, labels)
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
    value = loss.item()
    if math.isfinite(value):
        loss.backward()
        optimizer.step()
    return value, wrong_answers(logits, labels)


def wrong_answers(logits: torch.Tensor, labels: torch.Tensor) -> int:
    """How many rows have their highest logit elsewhere than at the label."""
    return int((logits.argmax(1) != labels).sum().item())


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> TakeStep:
    """A function that takes one step of cross-entropy: step(images, labels) -> (loss, wrong).

    For an accelerated network whose layers follow one another in a line, forward, loss, backward
    and SGD's update are two native calls; anything else goes torch's way, with the same result.
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
        if outcome.strange:  # ignored labels, or wrong ones: torch knows which
            return train_step(self.model, self.optimizer, images, labels)
        if math.isfinite(outcome.loss):
            self._update(self._gradients.total)
        return outcome.loss, outcome.wrong

    def _prepared(self, images: torch.Tensor, labels: torch.Tensor) -> bool:
        """Whether this batch goes the native way; prepares it where it is new."""
        model = self.model
        if not isinstance(model, Network) or model.snip_straight is None or hooked(model):
            return False
        if not model.snip_straight.takes_batch(images, labels):
            return False
        if images.shape != self._shape or self._program is None or not self._program.holds():
            self._prepare(model, model.snip_straight, images, labels)
        return self._program is not None and not any(map(_awaited, self._program.places))

    def _prepare(
        self, model: nn.Module, straight: Straight, images: torch.Tensor, labels: torch.Tensor
    ) -> None:
        self._shape = images.shape
        self._program = straight.training_program(model, images, labels)
        if self._program is not None:
            self._gradients = Gradients(self._program.native, len(images))
            self._update = Update(self._program, self.optimizer)


class Update:
    """The optimiser's step on a program's parameters: native for SGD, torch's own otherwise."""

    def __init__(self, program: Program, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self._places = optimizer, program.places
        self._structs: ctypes.Array[ParameterStruct] | None = None
        self._settings: list[Any] = []
        self._written: list[torch.Tensor] = []

    def __call__(self, gradients: torch.Tensor) -> None:
        """Take the step."""
        if not self._native():
            self.optimizer.zero_grad(set_to_none=True)
            for p, offset in self._places.items():
                p.grad = gradients[offset : offset + p.numel()].view(p.shape).clone()
            self.optimizer.step()
            return
        settings = self._places_and_settings()
        if self._structs is None or settings != self._settings:
            self._structs = self._pointed()
            self._settings = self._places_and_settings()  # with the buffers that were missing
        sgd_update(self._structs, gradients)
        for tensor in self._written:  # what autograd saved of them is not valid any more
            torch.autograd.graph.increment_version(tensor)
        # What torch.optim.lr_scheduler looks for before it moves on.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _native(self) -> bool:
        """Plain SGD over these parameters, watched by nobody."""
        optimizer: Any = self.optimizer
        if type(optimizer) is not torch.optim.SGD:
            return False
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return False
        if _global_optimizer_pre_hooks or set(_global_optimizer_post_hooks.values()) - {after_step}:
            return False
        return all(
            not (group["dampening"] or group["maximize"] or group["differentiable"])
            and isinstance(group["lr"], float)
            for group in optimizer.param_groups
        )

    def _places_and_settings(self) -> list[Any]:
        """All that the structs hold and a user may change, such as by loading a state."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        buffers = [state[p].get("momentum_buffer") for p in self._places if p in state]
        return [
            *(None if buffer is None else buffer.data_ptr() for buffer in buffers),
            *((_settings(group), [id(p) for p in group["params"]]) for group in groups),
        ]

    def _pointed(self) -> ctypes.Array[ParameterStruct]:
        """Where the native update finds each parameter, its momentum and its settings."""
        made, self._written = [], []
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p in self._places:
                    buffer = self._momentum(p) if group["momentum"] else None
                    self._written += [p] if buffer is None else [p, buffer]
                    place = (pointer(p), pointer(buffer), self._places[p], p.numel())
                    made.append(ParameterStruct(*place, *_settings(group)))
        return (ParameterStruct * len(made))(*made)

    def _momentum(self, parameter: nn.Parameter) -> torch.Tensor:
        """Its buffer, where torch.optim.SGD keeps it; zero is what its first step begins with."""
        state = self.optimizer.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
        buffer: torch.Tensor = state["momentum_buffer"]
        return buffer


def _settings(group: dict[str, Any]) -> tuple[Any, ...]:
    return group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]


def _awaited(parameter: nn.Parameter) -> bool:
    """Whether hooks on a parameter wait for its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
