"""One step of training: torch's way, or all of it in native calls where the network allows."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.engine.kernels.network import Gradients, ParameterStruct, sgd_update
from snip.engine.layout import native
from snip.engine.network import Network
from snip.engine.program import Program
from snip.training.evaluate import wrong_answers

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


def training_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> TakeStep:
    """A function that takes one step of cross-entropy: step(images, labels) -> (loss, wrong).

    For an accelerated network whose layers follow one another in a line, forward, loss, backward
    and SGD's update are two native calls; anything else goes torch's way, with the same result.
    """
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
        straight = self.model.straight if isinstance(self.model, Network) else None
        if straight is None or not native(images) or images.ndim < 2 or not len(images):
            return False
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            return False
        program = self._program
        if program is None or images.shape != self._shape or not program.holds():
            program = straight.training_program(self.model, images.shape)
            self._shape, self._program = images.shape, program
            if program is not None:
                self._gradients = Gradients(program.native, len(images))
                self._update = Update(program, self.optimizer)
        return program is not None and not _hooked(program.parameters)


class Update:
    """The optimiser's step on a program's parameters: native for SGD, torch's own otherwise."""

    def __init__(self, program: Program, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        places = zip(program.parameters, program.offsets, strict=True)
        self._offsets = {p: at for p, at in places if p.requires_grad}
        self._structs: ctypes.Array[ParameterStruct] | None = None
        self._settings: list[Any] = []

    def __call__(self, gradients: torch.Tensor) -> None:
        """Take the step."""
        if not self._native():
            for p, offset in self._offsets.items():
                p.grad = gradients[offset : offset + p.numel()].view(p.shape)
            self.optimizer.step()
            return
        settings = self._places_and_settings()
        if self._structs is None or settings != self._settings:
            self._structs = self._pointed()
            self._settings = self._places_and_settings()  # with the buffers that were missing
        sgd_update(self._structs, gradients)
        # What torch.optim.lr_scheduler looks for before it moves on.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _native(self) -> bool:
        """Plain SGD over these parameters, watched by nobody."""
        optimizer: Any = self.optimizer
        if type(optimizer) is not torch.optim.SGD:
            return False
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return False
        return all(
            not (group["dampening"] or group["maximize"] or group["differentiable"])
            and isinstance(group["lr"], float)
            for group in optimizer.param_groups
        )

    def _places_and_settings(self) -> list[Any]:
        """All that the structs hold and a user may change, such as by loading a state."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        buffers = [state[p].get("momentum_buffer") for p in self._offsets if p in state]
        return [
            *(None if buffer is None else buffer.data_ptr() for buffer in buffers),
            *map(_settings, groups),
        ]

    def _pointed(self) -> ctypes.Array[ParameterStruct]:
        """Where the native update finds each parameter, its momentum and its settings."""
        made = []
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p in self._offsets:
                    momentum = self._momentum(p) if group["momentum"] else None
                    made.append(
                        ParameterStruct(
                            *(p.data_ptr(), momentum, self._offsets[p], p.numel()),
                            *_settings(group),
                        )
                    )
        return (ParameterStruct * len(made))(*made)

    def _momentum(self, parameter: nn.Parameter) -> int:
        """Its buffer, where torch.optim.SGD keeps it; zero is what its first step begins with."""
        state = self.optimizer.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return int(state["momentum_buffer"].data_ptr())


def _settings(group: dict[str, Any]) -> tuple[Any, ...]:
    return group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]


def _hooked(parameters: list[nn.Parameter]) -> bool:
    """Whether somebody waits for a gradient, as DistributedDataParallel does."""
    return any(
        p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None) for p in parameters
    )
