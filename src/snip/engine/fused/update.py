"""The optimiser's step of a network that trains in native calls."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from snip.common.errors import InputError
from snip.engine.fused.program import Program
from snip.engine.kernels.memory import memory_of, pointer
from snip.engine.kernels.straight import ParameterStruct, sgd_update
from snip.engine.layers.optimizer_state import before_step
from snip.masks.holding import after_step


class Update:
    """The optimiser's step on a program's parameters: native for SGD, torch's own otherwise."""

    def __init__(self, program: Program, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self._places = optimizer, program.places
        self._structs: ctypes.Array[ParameterStruct] | None = None
        self._prepared: list[Any] | None = None  # what `_state` was when the structs were made
        self._written: list[torch.Tensor] = []

    def __call__(self, gradients: torch.Tensor) -> None:
        """Take the step."""
        structs = self._current_structs() if self._is_plain_sgd() else None
        if structs is None:
            self.optimizer.zero_grad(set_to_none=True)
            for p, offset in self._places.items():
                p.grad = gradients[offset : offset + p.numel()].view(p.shape).clone()
            self.optimizer.step()
            return
        sgd_update(structs, gradients)
        for tensor in self._written:  # what autograd saved of them is not valid any more
            torch.autograd.graph.increment_version(tensor)
        # What torch.optim.lr_scheduler looks for before it moves on.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _is_plain_sgd(self) -> bool:
        """Whether it is plain SGD, and no hook waits for its step."""
        optimizer: Any = self.optimizer
        if type(optimizer) is not torch.optim.SGD or _has_step_of_its_own(optimizer):
            return False
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            return False
        hooks = {*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values()}
        if hooks - {before_step, after_step}:
            return False
        return all(
            not (group["dampening"] or group["maximize"] or group["differentiable"])
            # A tensor may change in its place, and torch says what is wrong with anything else.
            and all(type(number) in (int, float) for number in _settings(group)[:3])
            for group in optimizer.param_groups
        )

    def _current_structs(self) -> ctypes.Array[ParameterStruct] | None:
        """The structs for the optimiser as it is now; None if its state is not as SGD makes it."""
        if self._prepared is None or self._state() != self._prepared:
            try:
                self._structs = self._pointed()
            except InputError:  # torch computes with such momentum, or says what is wrong with it
                self._structs = None
            self._prepared = self._state()  # with the buffers that were missing
        return self._structs

    def _state(self) -> list[Any]:
        """All that the structs hold and a user may change, such as by loading a state."""
        groups, state = self.optimizer.param_groups, self.optimizer.state
        buffers = [state[p].get("momentum_buffer") for p in self._places if p in state]
        return [
            *(None if buffer is None else memory_of(buffer) for buffer in buffers),
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
                    values = pointer(p, p.shape, "a parameter")
                    momentum = pointer(buffer, p.shape, "a parameter's momentum")
                    place = (values, momentum, self._places[p], p.numel())
                    made.append(ParameterStruct(*place, *_settings(group)))
        _check_apart(self._written)
        return (ParameterStruct * len(made))(*made)

    def _momentum(self, parameter: nn.Parameter) -> torch.Tensor:
        """Its buffer, where torch.optim.SGD keeps it; zero is what its first step begins with."""
        state = self.optimizer.state[parameter]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
        buffer: torch.Tensor = state["momentum_buffer"]
        return buffer


def _has_step_of_its_own(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `step` was replaced on this very optimiser, by anyone but a rate's schedule.

    torch.optim.lr_scheduler replaces it by a function that notes the call and does the same.
    """
    step = vars(optimizer).get("step")
    by_schedule = hasattr(step, "_wrapped_by_lr_sched")
    return step is not None and not (by_schedule and step.__wrapped__ is type(optimizer).step)


def _check_apart(tensors: list[torch.Tensor]) -> None:
    """InputError if two tensors share memory: the native step writes each while reading another."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.numel())
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise InputError("parameters and their momentum must not share memory")


def _settings(group: dict[str, Any]) -> tuple[Any, ...]:
    return group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]
