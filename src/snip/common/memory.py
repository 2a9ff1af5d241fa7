"""Tell if a tensor's memory may be written to, because nothing else refers to it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch


def is_sole_owner(tensors: Sequence[torch.Tensor]) -> bool:
    """True if nothing but this sequence refers to the memory of its last tensor.

    A tensor and what it is a view of are then referred to as often as one that was just made.
    """
    is_view = tensors[-1]._base is not None
    just_made = [torch.empty(1, 1, dtype=torch.float32, device="cpu")]
    if is_view:
        just_made = [just_made.pop().t()]
    return _references(tensors) == _references(just_made)


def _references(tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    """All that tells whether someone else has the last tensor or its memory."""
    tensor = tensors[-1]
    storage, base = tensor.untyped_storage(), tensor._base
    return (
        type(tensor),
        sys.getrefcount(tensor),  # variables and hooks of a user's
        tensor._use_count(),  # type: ignore[attr-defined]  # what autograd saved
        torch._C._storage_Use_Count(storage._cdata),  # other views of the memory
        storage.resizable(),  # not if the memory is a numpy array's
        storage.nbytes() == tensor.nbytes,
        None if base is None else (sys.getrefcount(base), base._use_count()),  # type: ignore[attr-defined]
    )
