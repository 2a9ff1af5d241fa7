"""Where a training stands: what a checkpoint holds beside the weights and the optimiser."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from snip.common.checks import check_fields, check_kinds
from snip.common.errors import InputError
from snip.training.metrics import Metrics, Running, selected

Weights = dict[str, torch.Tensor]
COUNTERS = ("iteration", "seconds", "cpu_seconds", "step_seconds")


@dataclass
class State:
    """Counters, the history so far, and the weights that validation selects."""

    iteration: int = 0  # steps done
    seconds: float = 0.0  # wall clock, over all resumed parts; includes pauses of the process
    cpu_seconds: float | None = 0.0  # of all threads; None if an older version did a part
    step_seconds: float = 0.0  # of these, spent in training steps
    running: Running = field(default_factory=Running)
    history: list[Metrics] = field(default_factory=list)
    selected: Weights | None = None  # None before the first evaluation, or without validation

    def count(self, loss: float, wrong: int, images: int, seconds: float) -> None:
        """Count one more training step."""
        self.iteration += 1
        self.step_seconds += seconds
        self.running.add(loss, wrong, images, seconds)

    def spend(self, seconds: float, cpu_seconds: float) -> None:
        """Add to the time that the training has taken so far."""
        self.seconds += seconds
        if self.cpu_seconds is not None:
            self.cpu_seconds += cpu_seconds

    def record(self, metrics: Metrics, model: nn.Module) -> None:
        """Add an evaluation, and keep the weights if it is the best on validation."""
        self.history.append(metrics)
        self.running = Running()
        if metrics.valid_error is not None and selected(self.history) is metrics:
            self.selected = snapshot(model)

    def to_dict(self) -> dict[str, Any]:
        """Plain values and tensors, which a checkpoint may hold."""
        return {
            **{name: getattr(self, name) for name in COUNTERS},
            "running": dataclasses.asdict(self.running),
            "history": [line.to_dict() for line in self.history],
            "selected": self.selected,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> State:
        """The inverse of `to_dict`; values of the wrong kind are refused."""
        check_fields(cls, data, "part of a training's state")
        history = [Metrics.from_dict(line) for line in data["history"]]
        running = Running(**data["running"])
        check_kinds(running, "a training's sums")
        # Checkpoints written before CPU time was recorded lack it.
        state = cls(**{"cpu_seconds": None, **data, "running": running, "history": history})
        check_kinds(state, "a training's state")
        return state

    def check(self, *, iterations: int, weights: Mapping[str, Any], validates: bool) -> None:
        """Refuse a state that no training of so many steps with such weights can have."""
        done = [line.iteration for line in self.history]
        spent = (self.seconds, self.step_seconds, self.cpu_seconds or 0.0)
        if not 0 <= self.iteration <= iterations or min(spent) < 0:
            raise InputError(f"{self.iteration} of {iterations} steps in {self.seconds} seconds.")
        if done != sorted(set(done)) or any(not 0 < step <= self.iteration for step in done):
            raise InputError("its evaluations are not in the order of the steps.")
        if self.iteration == iterations and done[-1:] != [iterations]:
            raise InputError("its last step was not evaluated.")
        if any((line.valid_error is not None) != validates for line in self.history):
            raise InputError(f"this training {'has a' if validates else 'has no'} validation part.")
        if any((line.valid_error or 0) < 0 for line in self.history):
            raise InputError("it has errors below zero.")
        if (self.selected is not None) != (validates and bool(self.history)):
            raise InputError("the weights that it selected do not go with its evaluations.")
        if self.selected is not None and different_tensors(self.selected, weights):
            raise InputError("the weights that it selected are of another network.")
        self.running.check()


def snapshot(model: nn.Module) -> Weights:
    """Copies, on the CPU, of the tensors in a model's state_dict. A tied one is copied twice."""
    state = model.state_dict()
    return {name: v.detach().cpu().clone() for name, v in tensors(state).items()}


def extra_state(model: nn.Module) -> dict[str, Any]:
    """What get_extra_state() adds to a model's state_dict beside tensors."""
    state = model.state_dict()
    return {name: v for name, v in state.items() if not isinstance(v, torch.Tensor)}


def different_shapes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The names of tensors that only one of two state_dicts has, or in another shape."""
    shapes, expected = (
        {name: tuple(value.shape) for name, value in tensors(state).items()}
        for state in (theirs, ours)
    )
    return [n for n in sorted({*shapes, *expected}) if shapes.get(n) != expected.get(n)]


def different_tensors(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """The names of tensors that only one of two state_dicts has, or in another shape or type."""
    kinds, expected = (
        {name: (value.shape, value.dtype) for name, value in tensors(state).items()}
        for state in (theirs, ours)
    )
    return [n for n in sorted({*kinds, *expected}) if kinds.get(n) != expected.get(n)]


def tensors(state: Mapping[str, Any]) -> Weights:
    """The tensors of a state_dict."""
    return {name: v for name, v in state.items() if isinstance(v, torch.Tensor)}
