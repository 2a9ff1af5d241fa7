"""Call a model on an example however the user wrote it down; find the tensors in what they gave."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from snip.common.errors import InputError, first_line
from snip.distributed.wrappers import unwrap
from snip.network.undisturbed import undisturbed

Call = tuple[tuple[Any, ...], dict[str, Any]]  # what a model is called with: args, kwargs


def call(model: nn.Module, inputs: Any) -> Any:
    """model(inputs), model(*inputs) for a tuple or list, model(**inputs) for a mapping."""
    args, kwargs = arguments(model, inputs)
    return model(*args, **kwargs)


def arguments(model: nn.Module, inputs: Any) -> Call:
    """What `call` passes. Of a batch (inputs, targets) only the inputs, if the model takes one."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    # A PackedSequence is a tuple too, but one argument.
    if type(inputs) not in (tuple, list):
        return (inputs,), {}
    return (tuple(inputs) if _accepts(model, inputs) else (inputs[0],)), {}


def inputs_of(model: nn.Module, made: Call | None) -> Any:
    """What `call` needs to repeat a call of the model; None if there was none."""
    if made is None or not made[1]:
        return None if made is None else made[0]
    args, kwargs = made
    names = inspect.signature(unwrap(model).forward).parameters
    return dict(zip(names, args, strict=False)) | kwargs


def _accepts(model: nn.Module, inputs: Any) -> bool:
    try:
        inspect.signature(model.forward).bind(*inputs)
    except (TypeError, ValueError):
        return False
    return True


def example(model: nn.Module, batch: Any) -> Any:
    """What `call` passes of a batch that the model runs on; InputError if it runs on no part of it.

    Of an (inputs, targets) pair that is the inputs, where they are enough; of any other tuple its
    longest beginning that the model takes, so that targets may follow the arguments.
    """
    if not any(tensor.ndim and len(tensor) for tensor in tensors_in(batch)):
        raise InputError(
            "there are no samples in what was given: give one typical batch, to see shapes and to "
            "time layers."
        )
    errors: list[Exception] = []
    for part in _parts(batch):
        with undisturbed(model), torch.no_grad():
            try:
                call(model.eval(), copied(part))
                return part
            except Exception as error:  # what a user's forward may raise has no common kind
                fits = type(part) is not tuple or _accepts(model, part)
                errors.insert(0 if fits else len(errors), error)
    raise InputError(
        f"{type(model).__name__} does not run on this batch ({first_line(errors[0])}): give one as "
        "the model is called, a tensor, a tuple of arguments (targets may follow) or a dict of "
        "keywords."
    ) from errors[0]


def _parts(batch: Any) -> list[Any]:
    """The parts of a batch that a model may be called on, in the order in which to try them."""
    if type(batch) not in (tuple, list):
        return [batch]
    beginnings = [tuple(batch[:count]) for count in range(len(batch), 0, -1)]
    return beginnings[::-1] if len(batch) == 2 else beginnings


def copied(value: Any) -> Any:
    """Copy a structure and its tensors: a forward may write into its input."""
    return mapped(
        value, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad)
    )


def first_tensor(batch: Any) -> torch.Tensor | None:
    """The first tensor found in a batch, depth first."""
    return next(tensors_in(batch), None)


def tensors_in(value: Any, around: tuple[int, ...] = ()) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses, depth first.

    `around` has the ids of what a value lies in: what refers to itself is looked at once.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in around:
        for part in _inside(value):
            yield from tensors_in(part, (*around, id(value)))


def _inside(value: Any) -> Iterable[Any]:
    """The parts of a value that has parts."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    return [getattr(value, name, None) for name in _fields(value)]


def _fields(value: Any) -> list[str]:
    """The names of the fields of a dataclass's object; of anything else there are none."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return []
    return [field.name for field in dataclasses.fields(value)]


Made = dict[int, tuple[Any, Any]]  # by id: a value, which must live as long as its id, and its copy


def mapped(value: Any, change: Callable[[Any], Any], made: Made | None = None) -> Any:
    """The same nested structure with `change` applied to each of its tensors.

    `made` has the copies so far: what refers to itself does so in the copy.
    """
    made = {} if made is None else made
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PackedSequence):
        return value._replace(data=change(value.data))
    if isinstance(value, tuple):
        parts = [mapped(part, change, made) for part in value]
        # A named tuple takes its fields one by one, torch's return types take them all at once.
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if id(value) not in made:
        _map_into(value, change, made)
    return made[id(value)][1]


def _map_into(value: Any, change: Callable[[Any], Any], made: Made) -> None:
    """Note the copy of a value that may refer to itself, before that of its parts is made."""
    twin = value
    if isinstance(value, Mapping):
        # Of the same kind where it can be written: a loss may ask for batch.input_ids.
        twin = copy.copy(value) if isinstance(value, MutableMapping) else {}
        made[id(value)] = value, twin
        for key, part in value.items():
            twin[key] = mapped(part, change, made)
    elif type(value) is list:
        made[id(value)] = value, (twin := [])
        twin.extend(mapped(part, change, made) for part in value)
    elif _fields(value) and first_tensor(value) is not None:
        made[id(value)] = value, (twin := copy.copy(value))
        for name in _fields(value):
            # Past the `__setattr__` of a frozen dataclass, which refuses.
            object.__setattr__(twin, name, mapped(getattr(value, name, None), change, made))
    made[id(value)] = value, twin


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    """A batch of twice the size: of a batch of one, its size cannot be told from a constant."""
    return torch.cat([tensor, tensor]) if tensor.ndim else tensor
