"""Use a model and leave it as found: modes, attributes, buffers and random states come back."""

from __future__ import annotations

import copy
import operator
import random
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

BATCH_NORM_MODES = ("eval", "train")
# Of two values, batch norm makes plus and minus one, whatever they are: all gradients vanish.
FEWEST_VALUES = 8
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CONTAINERS = (dict, OrderedDict, defaultdict, list, set, deque)
_SIMPLE = (bool, int, float, str)
_PLAIN = {*_SIMPLE, type(None)}
_NOTHING: dict[str, Any] = {}  # the copy of every empty container
_TORCHS_OWN = ("_parameters", "_buffers", "_modules")  # where a module keeps such attributes


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[None]:
    """Give each module its train or eval mode back on the way out."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Snapshot]:
    """Restore modes, attributes, buffers and random states on the way out.

    Gives the snapshot from before, which knows what has changed so far.
    """
    before = Snapshot(model)
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def batch_norm_in(model: nn.Module, mode: str) -> Iterator[None]:
    """Inside the block every batch (or instance) norm is in `mode`, and nothing else.

    One that would ask other processes for their statistics (SyncBatchNorm) takes those of the
    batch alone, as one process would: the others may be at another batch, or at none.
    """
    handles, local = [], []
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm) and "forward" not in module.__dict__:
            module.__dict__["forward"] = MethodType(_BatchNorm.forward, module)
            local.append(module)
        if isinstance(module, _NormBase):
            if mode == "train" and _is_frozen(module):
                continue  # it is kept as it is on purpose, and so are its statistics
            module.training = mode == "train"
            if module.training and isinstance(module, _BatchNorm):
                handles.append(module.register_forward_pre_hook(_only_with_statistics))
        elif isinstance(module, nn.RNNBase) and module.dropout == 0:
            # cuDNN computes no gradient of a recurrent layer in eval mode; without dropout
            # the two modes are the same function.
            module.training = True
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for norm in local:
            del norm.__dict__["forward"]


def hooked(module: nn.Module) -> bool:
    """True if hooks on the module wait for a forward or backward pass of torch's."""
    return any(getattr(module, name) for name in HOOKS)


def drawing_devices(model: nn.Module) -> list[torch.device]:
    """The model's devices with random generators of their own, such as GPUs; not the CPU."""
    found = {parameter.device for parameter in model.parameters()}
    return sorted(filter(draws, found), key=str)


def draws(device: torch.device) -> bool:
    """True if a device has a random generator beside the CPU's."""
    return device.type != "cpu" and hasattr(getattr(torch, device.type, None), "get_rng_state")


class Snapshot:
    """A model's attributes, the values of its tensors except parameters, and the random state.

    What attributes contain counts too: dicts, lists and sets, however deep they are nested.
    """

    def __init__(self, model: nn.Module) -> None:
        self._containers: dict[int, tuple[str, Any, Any]] = {}  # name, container, its copy
        self._tensors: dict[int, tuple[str, torch.Tensor, torch.Tensor, int]] = {}
        self._leaves: set[int] = set()  # ids of the tensors that belong to no graph
        for name, module in model.named_modules():
            self._note(name, vars(module))
        self._devices = drawing_devices(model)
        self._random = _random_state(self._devices)

    def changes(self) -> list[str]:
        """The names of attributes and buffers that were written since."""
        names = [
            name
            for name, value, before, version in self._tensors.values()
            if _written(value, before, version)
        ]
        for name, now, before in self._containers.values():
            if not isinstance(now, dict):
                names += [] if _same_parts(now, before) else [name]
                continue
            for key in dict.fromkeys([*now, *before]):
                if not _same(now.get(key, _same), before.get(key, _same)):
                    names.append(name if key in _TORCHS_OWN else f"{name}.{key}")
        return [name.removeprefix(".") for name in names]

    def has_drawn(self) -> bool:
        """True if torch, Python or NumPy drew random numbers since."""
        return _random_state(self._devices) != self._random

    def restore(self) -> None:
        """Give the model and the random state back what they had."""
        for _, now, before in self._containers.values():
            # Nearly all are a module's dicts of hooks, which are empty and stay so.
            if (now or before) and not _same_parts(now, before):
                now.clear()
                (now.update if isinstance(now, (dict, set)) else now.extend)(before)
        for _, value, before, version in self._tensors.values():
            if _written(value, before, version):
                if id(value) in self._leaves and not value.is_leaf:
                    value.detach_()  # a result of the forward was written into it, with its graph
                with torch.no_grad():
                    value.copy_(before)
        _set_random_state(self._devices, self._random)

    def _note(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            self._tensors[id(value)] = name, value, value.detach().clone(), _version(value)
            if value.is_leaf:
                self._leaves.add(id(value))
        elif isinstance(value, tuple):
            for part in value:
                if type(part) not in _PLAIN:
                    self._note(name, part)
        elif type(value) in _CONTAINERS and id(value) not in self._containers:
            self._containers[id(value)] = name, value, copy.copy(value) if value else _NOTHING
            parts = value.items() if isinstance(value, dict) else enumerate(value)
            for key, part in parts:
                # Asked here, because most attributes are plain values.
                if type(part) not in _PLAIN:
                    self._note(name if key in _TORCHS_OWN else f"{name}.{key}", part)


def _only_with_statistics(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Use the running statistics where a batch has too few values per channel for its own."""
    module.training = not args or args[0].numel() >= FEWEST_VALUES * args[0].shape[1]


def _is_frozen(module: nn.Module) -> bool:
    """True if a norm has parameters and none of them is trained."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)


def _same(one: Any, two: Any) -> bool:
    """True if two attributes are one object, or equal where that is all that matters."""
    return one is two or (type(one) is type(two) and isinstance(one, _SIMPLE) and one == two)


def _same_parts(one: Any, two: Any) -> bool:
    """True if two containers hold the same objects in the same order."""
    if not one or not two:
        return len(one) == len(two)
    if isinstance(one, set):
        return bool(one == two)
    if isinstance(one, dict) and not _same_parts([*one.values()], [*two.values()]):
        return False
    if len(one) != len(two):
        return False
    return all(map(operator.is_, one, two)) or all(map(_same, one, two))


def _written(value: torch.Tensor, before: torch.Tensor, version: int) -> bool:
    """True if a tensor was written in place; a write through `.data` changes no version."""
    if _version(value) != version or value.shape != before.shape:
        return True
    if value.layout != torch.strided or value.is_meta or torch.equal(value, before):
        return False
    both_nan = (value != value) & (before != before)
    return not bool(((value == before) | both_nan).all())


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _random_state(devices: list[torch.device]) -> tuple[Any, Any, Any]:
    """The states of torch's, Python's and, if NumPy is in use, of NumPy's generator.

    Torch has one for the CPU and one for each of the devices.
    """
    numpy = sys.modules.get("numpy")
    theirs = () if numpy is None else numpy.random.get_state()
    torchs = [torch.get_rng_state(), *(getattr(torch, d.type).get_rng_state(d) for d in devices)]
    return [t.tolist() for t in torchs], random.getstate(), [_listed(part) for part in theirs]


def _listed(part: Any) -> Any:
    return part if isinstance(part, _SIMPLE) else part.tolist()


def _set_random_state(devices: list[torch.device], state: tuple[Any, Any, Any]) -> None:
    torchs, pythons, numpys = state
    of_cpu, *of_devices = (torch.tensor(one, dtype=torch.uint8) for one in torchs)
    torch.set_rng_state(of_cpu)
    for device, one in zip(devices, of_devices, strict=True):
        getattr(torch, device.type).set_rng_state(one, device)
    random.setstate(pythons)
    if numpys:
        sys.modules["numpy"].random.set_state(tuple(numpys))
