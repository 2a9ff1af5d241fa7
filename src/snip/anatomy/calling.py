"""Call a model on an example however the user wrote it down; find the tensors in what they gave."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

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


def _accepts(model: nn.Module, inputs: Any) -> bool:
    try:
        inspect.signature(model.forward).bind(*inputs)
    except (TypeError, ValueError):
        return False
    return True


def first_tensor(batch: Any) -> torch.Tensor | None:
    """The first tensor found in a batch, depth first."""
    return next(tensors_in(batch), None)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists and mappings, depth first."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nested structure with `change` applied to each of its tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PackedSequence):
        return value._replace(data=change(value.data))
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(mapped(part, change) for part in value)
    return value


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    """A batch of twice the size: of a batch of one, its size cannot be told from a constant."""
    return torch.cat([tensor, tensor]) if tensor.ndim else tensor
