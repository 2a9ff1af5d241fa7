"""Values that no file of ours should hold, and what a kind of file is to its attackers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

NOTHING = object()  # stands for a field that is taken away
HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 2, 2**31, 2**40, 2**63, 10**400, 0.5, -1e308, float("inf"), float("nan"), "",
    "float64", "\x1b]0;owned\x07", "\ud800", [], {}, [[0]], [2**20, 2**20], [0] * 4096,
    {"": {}}, {"a": 1}, NOTHING,
)  # fmt: skip
# Long and wide ones, which take time or fill a message if nobody counts them first. They take time
# to write as well, so that only random attacks try them.
WIDE = ("long " * 200_000, [2**62] * 20_000, [[]] * 100_000, {str(n): n for n in range(20_000)})


def shared(make: Callable[[list[Any]], Any]) -> Any:
    """A few containers that hold one another: a pickle of kilobytes, and values without end."""
    value = make([1])
    for _ in range(17):
        value = make([value] * 10)
    return value


# What a pickle can hold and JSON cannot.
HOSTILE_SHARED = (shared(list), shared(tuple), shared(lambda parts: dict(enumerate(parts))))
# A checkpoint may hold tensors too: of other sizes and kinds, and larger than what it holds.
HOSTILE_TENSORS = (
    torch.zeros(()), torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(1, 0),
    torch.zeros(1).expand(2**40), torch.zeros(4, 4).to_sparse(), torch.zeros(2, device="meta"),
    torch.zeros(2, dtype=torch.complex64), float("nan") * torch.ones(2),
)  # fmt: skip


class Kind(NamedTuple):
    """A kind of file: how a real one is made, read and given other fields."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    trees: Callable[[Path], dict[str, Any]]  # what can be altered in it, by name
    write: Callable[[Path, str, Any], None]  # one of these trees, with checksums that agree
    summed: bool = True  # whether every damaged byte must be noticed
    hostile: tuple[Any, ...] = HOSTILE


def digest(value: Any) -> str:
    """The same for the same values, to the last bit."""
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        value = f"{value.dtype}{tuple(value.shape)}{hashlib.sha256(raw).hexdigest()}"
    if isinstance(value, dict):
        value = sorted((str(key), digest(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        value = [part if isinstance(part, str) else digest(part) for part in value]
    return hashlib.sha256(repr(value).encode()).hexdigest()
