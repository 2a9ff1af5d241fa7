"""Call a model on an example however the user wrote it down; find the tensors in what they gave."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn


def call(model: nn.Module, inputs: Any) -> Any:
    """model(inputs), model(*inputs) for a tuple or list, model(**inputs) for a mapping."""
    args, kwargs = arguments(model, inputs)
    return model(*args, **kwargs)


def arguments(model: nn.Module, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


def doubled(tensor: torch.Tensor) -> torch.Tensor:
    """A batch of twice the size: of a batch of one, its size cannot be told from a constant."""
    return torch.cat([tensor, tensor]) if tensor.ndim else tensor
