"""The steps of SGD, Adam and AdamW as one native call on all parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.engine.kernels.memory import places_of, pointer, pointers
from snip.engine.kernels.update import AdamParameterStruct, ParameterStruct, native_update

Group = dict[str, Any]
Settings = tuple[Any, ...]
MOST = 1 << 18  # numbers in an optimiser's parameters: beyond, torch's threads are faster
GradientOf = Callable[[nn.Parameter], torch.Tensor | None]


@dataclass(frozen=True)
class Rule:
    """How the native update of one kind of optimiser is told what to do."""

    kernel: str
    struct: type[ctypes.Structure]
    state: tuple[str, ...]  # names of the tensors that torch keeps for a parameter
    settings: Callable[[Group], Settings | None]  # of a group; None: only torch knows them

    def names(self, settings: Settings) -> tuple[str, ...]:
        """The state that a parameter has under these settings."""
        return () if self.struct is ParameterStruct and not settings[1] else self.state


def _sgd(group: Group) -> Settings | None:
    if group["dampening"] or group["maximize"] or group["differentiable"]:
        return None
    return group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]


def _adam(group: Group) -> Settings | None:
    if group["amsgrad"] or group["maximize"] or group["differentiable"] or group["capturable"]:
        return None
    # Before torch 2.7 groups do not say which of the two decays they mean: torch takes those steps.
    decay, decoupled = group["weight_decay"], group.get("decoupled_weight_decay")
    return group["lr"], *group["betas"], group["eps"], decay, decoupled


_ADAM = Rule("adam_update", AdamParameterStruct, ("exp_avg", "exp_avg_sq", "step"), _adam)
# By exact type: a subclass may do something else.
RULES: dict[type[torch.optim.Optimizer], Rule] = {
    torch.optim.SGD: Rule("sgd_update", ParameterStruct, ("momentum_buffer",), _sgd),
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
}


class Update:
    """The native step of one optimiser, prepared for its tensors and settings as they were last."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._key: list[Any] = []  # settings, parameters and states that the structs were made for
        self._refused: list[Any] = []  # those that could not be prepared last
        self._states: list[tuple[Any, str, Any]] = []  # a state, a name, and the tensor found there
        self._tensors: list[torch.Tensor] = []  # parameters and their state, which it writes
        self._places: Any = None  # where they were
        self._shapes: list[torch.Size] = []
        self._apart: list[int] = []  # bytes from the first gradient in memory to each
        self._structs: Any = None

    def take(self, optimizer: torch.optim.Optimizer, gradient_of: GradientOf) -> bool:
        """Take the step; False, with nothing changed, where torch has to take it.

        So it is with settings and tensors that the native update does not know, and in the first
        step, in which torch makes the optimiser's state.
        """
        settings, parameters = list[Settings](), list[nn.Parameter]()
        gradients: list[torch.Tensor] = []
        for group in optimizer.param_groups:
            own = self._rule.settings(group)
            if own is None:
                return False
            for p in group["params"]:
                gradient = gradient_of(p)
                if gradient is not None:
                    settings.append(own)
                    parameters.append(p)
                    gradients.append(gradient)
        if not gradients:
            return False
        states = optimizer.state
        key = [*settings, *map(id, parameters), *map(id, states), *map(id, states.values())]
        if key == self._refused:
            return False
        if key != self._key or self._has_moved():
            try:
                self._prepare(settings, parameters, states)
            except InputError:
                self._refused = key
                return False
            self._key = key
        try:
            addresses = pointers(gradients, self._shapes, "a gradient")
            first = min(addresses)
            self._place([address - first for address in addresses])
        except InputError:  # torch computes with such tensors, or says what is wrong with them
            return False
        native_update(self._rule.kernel, self._structs, first)
        # What autograd saved of them is not valid any more.
        torch.autograd.graph.increment_version(self._tensors)
        return True

    def _place(self, apart: list[int]) -> None:
        """Tell the structs where the gradients are; mostly they are as far apart as before."""
        if apart == self._apart:
            return
        self._apart = []
        if any(distance % 4 for distance in apart):
            raise InputError("a gradient begins within a number of another")
        for struct, distance in zip(self._structs, apart, strict=True):
            struct.offset = distance // 4
        self._apart = apart

    def _has_moved(self) -> bool:
        """Whether a tensor that it writes was replaced, or got other memory."""
        for state, name, tensor in self._states:  # a plain loop: this runs in every step
            if state.get(name) is not tensor:
                return True
        return not self._places.are(self._tensors)

    def _prepare(
        self, settings: Sequence[Settings], parameters: Sequence[nn.Parameter], states: Any
    ) -> None:
        """Point the structs to these tensors; InputError if the native update cannot take them."""
        self._key, self._apart, self._states = [], [], []
        entries: list[list[Any]] = []
        for own, p in zip(settings, parameters, strict=True):
            state = states.get(p, {})
            kept = [(state, name, state.get(name)) for name in self._rule.names(own)]
            self._states += kept
            entries.append([p, *(tensor for _, _, tensor in kept)])
        tensors: list[Any] = [t for entry in entries for t in entry]
        if not all(isinstance(t, torch.Tensor) and not t.is_inference() for t in tensors):
            raise InputError("an optimiser has no state yet, or one that cannot be written")
        if sum(p.numel() for p in parameters) > MOST:
            raise InputError("so many numbers are faster on torch's threads")
        _check_apart(tensors)
        made = list(map(self._struct, settings, entries))
        self._structs = (self._rule.struct * len(made))(*made)
        self._shapes = [p.shape for p in parameters]
        self._tensors, self._places = tensors, places_of(tensors)

    def _struct(self, settings: Settings, tensors: list[Any]) -> ctypes.Structure:
        # A tensor may change in its place, and torch says what is wrong with anything else.
        if any(type(number) not in (int, float, bool) for number in settings):
            raise InputError("a setting is no number")
        parameter, *state = tensors
        names = ("its parameter", *self._rule.state)
        shapes = [() if name == "step" else parameter.shape for name in names]
        given: list[torch.Tensor | None] = [parameter, *state]
        given += [None] * (len(names) - len(given))
        addresses = map(pointer, given, shapes, names)
        return self._rule.struct(*addresses, 0, parameter.numel(), *settings)


def _check_apart(tensors: list[torch.Tensor]) -> None:
    """InputError if two tensors share memory: the native step writes each while reading another."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.numel())
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        raise InputError("parameters and their state must not share memory")
