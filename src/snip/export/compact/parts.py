"""A model as named parts of a compact file: dense tensors, and sparse ones as values and gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from snip.common.errors import InputError
from snip.export.compact import gaps

Tensor = torch.Tensor
Tensors = dict[str, Tensor]
GAPS = "|gaps"  # beside a sparse tensor's values
ENTRY = 128  # bytes that one more entry costs in the header


@dataclass(frozen=True)
class Part:
    """How one tensor of the model is written."""

    shape: list[int]
    dtype: str  # in the model; the file may hold fewer bits
    kept: int | None = None  # values in the file; None if it is dense
    width: int | None = None  # bits per gap; None if nothing is left out
    held: bool = False  # whether the positions are a mask that the model holds

    def as_json(self) -> dict[str, Any]:
        """The fields that are set."""
        every = asdict(self).items()
        return {key: value for key, value in every if value is not None and value is not False}


def take_apart(
    tensor: Tensor, mask: Tensor | None, dtype: torch.dtype | None
) -> tuple[Part, Tensor, Tensor | None]:
    """Split a tensor into the description of its part, its values and its packed gaps."""
    shape, kind = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    values = flat if dtype is None or not flat.is_floating_point() else lowered(flat, dtype)
    keep = _not_zero(flat) if mask is None else mask.reshape(-1)
    kept = int(keep.sum())
    if kept == len(flat) and mask is not None:
        return Part(shape, kind, kept, held=True), values, None
    packed, width = gaps.encode(np.flatnonzero(keep.numpy()))
    saved = (len(flat) - kept) * values.element_size() - len(packed)
    if mask is None and saved <= ENTRY:
        return Part(shape, kind), values.reshape(shape), None
    part = Part(shape, kind, kept, width, held=mask is not None)
    return part, values[keep], torch.from_numpy(packed)


def put_together(part: Part, values: Tensor, packed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The tensor that was taken apart, and its mask if one was held."""
    dtype = getattr(torch, part.dtype)
    if part.kept is None:
        return values.to(dtype).reshape(part.shape), None
    total = int(np.prod(part.shape, dtype=np.int64))
    keep = torch.zeros(total, dtype=torch.bool)
    if part.width is None:
        keep[:] = True
    elif packed is not None:
        positions = gaps.decode(packed.numpy(), part.width, part.kept, total)
        keep[torch.from_numpy(positions)] = True
    flat = torch.zeros(total, dtype=dtype)
    flat[keep] = values.to(dtype)
    return flat.reshape(part.shape), keep.reshape(part.shape) if part.held else None


def model_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters, a tied one once, and the buffers that a state_dict has."""
    state: Mapping[str, Any] = model.state_dict()
    other = next((name for name, value in state.items() if not isinstance(value, Tensor)), None)
    if other is not None:
        raise InputError(f"{other!r} of this model's state is no tensor: save it beside.")
    yield from model.named_parameters()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in state)


def lowered(values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in fewer bits. Raises if one of them would become infinite."""
    result = values.to(dtype)
    if bool((result.isinf() & values.isfinite()).any()):
        raise InputError(
            f"a weight of {float(values.abs().max()):.3g} is too large for {dtype}: "
            "use torch.bfloat16, or leave dtype out."
        )
    return result


def _not_zero(flat: Tensor) -> Tensor:
    """True where any bit is set. -0.0 has its sign bit set and is kept, so that nothing is lost."""
    return flat.view(torch.uint8).reshape(len(flat), flat.element_size()).bool().any(1)
