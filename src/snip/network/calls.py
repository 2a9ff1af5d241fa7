"""One call of a model: from a batch to arguments, and the tensors in them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from snip.common.errors import InputError
from snip.common.text import first_line
from snip.distributed.ranks import Ranks
from snip.distributed.wrapped import unwrap
from snip.network.untouched import undisturbed


class Call(NamedTuple):
    """The arguments of one call of a model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, model: nn.Module) -> Any:
        """Call the model on copies of the arguments, because a forward may write into them."""
        return model(*copied(self.args), **copied(self.kwargs))

    def map(self, change: Callable[[torch.Tensor], Any]) -> Call:
        """The same call with `change` applied to each tensor."""
        return Call(*mapped(tuple(self), change))

    def inputs(self, model: nn.Module) -> Any:
        """The call as `arguments` takes it: a tuple, or a dict if there are keywords."""
        if not self.kwargs:
            return self.args
        names = inspect.signature(unwrap(model).forward).parameters
        return dict(zip(names, self.args, strict=False)) | self.kwargs


def arguments(model: nn.Module, inputs: Any) -> Call:
    """model(inputs), model(*inputs) for a tuple or list, model(**inputs) for a mapping.

    Of a batch (inputs, targets) only the inputs are passed, if the model takes one argument.
    """
    if isinstance(inputs, Mapping):
        return Call((), dict(inputs))
    # A PackedSequence is a tuple too, but one argument.
    if type(inputs) not in (tuple, list):
        return Call((inputs,), {})
    return Call(tuple(inputs) if _accepts(model, inputs) else (inputs[0],), {})


def call(model: nn.Module, inputs: Any) -> Any:
    """Call the model on inputs as `arguments` reads them."""
    args, kwargs = arguments(model, inputs)
    return model(*args, **kwargs)


def example(model: nn.Module, batch: Any) -> Any:
    """The part of a batch that the model runs on, as `arguments` takes it.

    Of an (inputs, targets) pair that is the inputs, where they are enough; of any other tuple its
    longest beginning that the model takes, so that targets may follow the arguments.
    """
    if not any(tensor.ndim and len(tensor) for tensor in tensors_in(batch)):
        raise InputError(
            "there are no samples in what was given: give one typical batch, to see shapes and to "
            "time layers."
        )
    errors: list[Exception] = []
    for part in _candidates(batch):
        with undisturbed(model), torch.no_grad():
            try:
                arguments(model, part).run(model.eval())
                return part
            except Exception as error:  # a user's forward may raise anything
                fits = type(part) is not tuple or _accepts(model, part)
                errors.insert(0 if fits else len(errors), error)
    raise InputError(
        f"{type(model).__name__} does not run on this batch ({first_line(errors[0])}): give one as "
        "the model is called, a tensor, a tuple of arguments (targets may follow) or a dict of "
        "keywords."
    ) from errors[0]


def shared_call(ranks: Ranks, own: Call | None, model: nn.Module) -> Call | None:
    """The first rank's call, on every rank; None if it cannot be sent.

    A call may hold anything, such as a function. Tensors travel by way of the CPU, because every
    rank has a device of its own.
    """
    if ranks.alone:
        return own
    packed = None
    if ranks.rank == 0 and own is not None:
        with suppress(Exception):  # whatever the user's objects raise, the other ranks are waiting
            packed = pickle.dumps(tuple(own.map(lambda tensor: tensor.detach().cpu())))
    packed, received = ranks.broadcast(packed), None
    with suppress(Exception):
        received = Call(*pickle.loads(packed))  # made by a rank of the same program
    everyone_has_it = all(ranks.all_gather(received is not None))
    if received is None or not everyone_has_it:
        return None
    device = device_of(model)
    return received.map(lambda tensor: tensor.to(device))


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter; the CPU if it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def device_off_cpu(model: nn.Module) -> torch.device | None:
    """The first device of the model's parameters that is not the CPU; None if all are there."""
    return next((p.device for p in model.parameters() if p.device.type != "cpu"), None)


def copy_of(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy; what `memo` has for an object's id stands for its copy.

    Results of a forward that lie on a module, such as the weight that `torch.nn.utils.weight_norm`
    computes, are copied without their graph: torch copies no tensor that has one, and the next
    forward computes them anew.
    """
    memo = {} if memo is None else memo
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def copied(value: Any) -> Any:
    """Copy a structure and its tensors: a forward may write into its input."""
    return mapped(
        value, lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad)
    )


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    """A batch of twice the size: of a batch of one, its size cannot be told from a constant."""
    return torch.cat([tensor, tensor]) if tensor.ndim else tensor


def first_tensor(batch: Any) -> torch.Tensor | None:
    """The first tensor in a batch, depth first."""
    return next(tensors_in(batch), None)


def tensors_in(value: Any, around: tuple[int, ...] = ()) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses, depth first.

    `around` has the ids of the containers around the value: one that holds itself is read once.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif id(value) not in around:
        for part in _parts_of(value):
            yield from tensors_in(part, (*around, id(value)))


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
    """Note the copy of a value that may refer to itself before its parts are copied."""
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
    elif _field_names(value) and first_tensor(value) is not None:
        made[id(value)] = value, (twin := copy.copy(value))
        for name in _field_names(value):
            # Past the `__setattr__` of a frozen dataclass, which refuses.
            object.__setattr__(twin, name, mapped(getattr(value, name, None), change, made))
    made[id(value)] = value, twin


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    return [getattr(value, name, None) for name in _field_names(value)]


def _field_names(value: Any) -> list[str]:
    """The fields of a dataclass's instance; none for anything else."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return []
    return [field.name for field in dataclasses.fields(value)]


def _accepts(model: nn.Module, inputs: Any) -> bool:
    try:
        inspect.signature(model.forward).bind(*inputs)
    except (TypeError, ValueError):
        return False
    return True


def _candidates(batch: Any) -> list[Any]:
    """The parts of a batch that a model may be called on, in the order in which to try them."""
    if type(batch) not in (tuple, list):
        return [batch]
    beginnings = [tuple(batch[:count]) for count in range(len(batch), 0, -1)]
    return beginnings[::-1] if len(batch) == 2 else beginnings
