"""The optimiser's step of a network that trains in native calls."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from snip.engine.fused.program import Program
from snip.engine.kernels.library import pointer
from snip.engine.kernels.straight import ParameterStruct, sgd_update
from snip.masks.holding import after_step


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
        """Whether it is plain SGD, and no hook waits for its step."""
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
