"""A model as named parts of a compact file: dense tensors, and sparse ones as values and gaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from snip.common.checks import check_kinds
from snip.common.errors import InputError
from snip.common.text import shown
from snip.export.compact import gaps

Tensor = torch.Tensor
Tensors = dict[str, Tensor]
GAPS = "|gaps"  # beside a sparse tensor's values
MOST_DIMENSIONS = 64  # of a tensor, as in torch
ENTRY = 128  # bytes that one more entry costs in the header
FEWER_BITS = (torch.float16, torch.bfloat16)  # as which a file may hold the values of parameters


@dataclass(frozen=True)
class Part:
    """How one tensor of the model is written."""

    shape: list[int]
    dtype: str  # in the model; the file may hold fewer bits
    kept: int | None = None  # values in the file; None if it is dense
    width: int | None = None  # bits per gap; None if nothing is left out
    held: bool = False  # whether the positions are a mask that the model holds

    def __post_init__(self) -> None:
        check_kinds(self, "a part")
        # Before anything is multiplied: the product of a million sizes takes hours.
        if len(self.shape) > MOST_DIMENSIONS or any(size < 0 for size in self.shape):
            raise InputError(f"shape of a part is {shown(self.shape)}: it is no shape.")
        if not isinstance(getattr(torch, self.dtype, None), torch.dtype):
            raise InputError(f"dtype of a part is {shown(self.dtype)}: torch has no such type.")
        if self.kept is None and (self.width is not None or self.held):
            raise InputError("a dense part has neither gaps nor a mask.")
        if self.width is None and self.kept not in (None, self.total):
            raise InputError(f"{self.kept} of {self.total} values of a part need gaps.")

    @property
    def total(self) -> int:
        """The number of values in the model."""
        return prod(self.shape)

    def as_json(self) -> dict[str, Any]:
        """The fields that are set."""
        every = asdict(self).items()
        return {key: value for key, value in every if value is not None and value is not False}

    def check_entries(self, values: Tensor | None, packed: Tensor | None) -> None:
        """Refuse entries of a file that are not what this part says, before anything is made."""
        if values is None or (packed is None) != (self.width is None):
            raise ValueError("the entries of a part are not those that its header names")
        shape = self.shape if self.kept is None else [self.kept]
        if list(values.shape) != shape or not _can_hold(values.dtype, getattr(torch, self.dtype)):
            raise ValueError(f"{values.dtype} {list(values.shape)} in place of {shape}")
        # Gaps never take more room than a bitmap, whose fields have one bit.
        if packed is not None and (
            packed.dtype != torch.uint8 or packed.ndim != 1 or len(packed) > (self.total + 7) // 8
        ):
            raise ValueError(f"{packed.dtype} {list(packed.shape)} are no gaps of {self.total}")


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
    part.check_entries(values, packed)
    dtype = getattr(torch, part.dtype)
    if part.kept is None:
        return values.to(dtype), None
    keep = torch.ones(part.total, dtype=torch.bool)
    if part.width is not None and packed is not None:
        positions = gaps.decode(packed.numpy(), part.width, part.kept, part.total)
        keep[:] = False
        keep[torch.from_numpy(positions)] = True
    flat = torch.zeros(part.total, dtype=dtype)
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


def _can_hold(stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a file may hold values of `dtype` as `stored`."""
    return stored == dtype or (dtype.is_floating_point and stored in FEWER_BITS)


def _not_zero(flat: Tensor) -> Tensor:
    """True where any bit is set. -0.0 has its sign bit set and is kept, so that nothing is lost."""
    return flat.view(torch.uint8).reshape(len(flat), flat.element_size()).bool().any(1)
