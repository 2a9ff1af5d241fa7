"""Tensors that are split over processes by rows, as `fully_shard` does (DTensor, Shard(0)).

Process after process holds the next rows, the last ones fewer or none, so that the elements in
flat order are those of the first process, then those of the second, and so on. An ordinary tensor
is whole in every process, and the functions here leave it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any, cast

import numpy as np
import torch

from snip.common.errors import InputError
from snip.distributed.ranks import ALONE, Ranks

Tensors = Mapping[str, torch.Tensor]
# The end of the sentence that refuses it.
FSDP1 = (
    "FSDP1 (FullyShardedDataParallel), which is not supported: use "
    "torch.distributed.fsdp.fully_shard (FSDP2), or DDP."
)


def is_sharded(parameter: torch.Tensor) -> bool:
    """True if a parameter is split over ranks (FSDP, tensor parallel)."""
    return _is_sharded_kind(type(parameter))


@cache
def _is_sharded_kind(kind: type) -> bool:
    # By name: DTensor takes a while to import, and few models have one.
    return any(base.__name__ in ("DTensor", "FlatParameter") for base in kind.__mro__)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds, in the same memory and outside of any graph."""
    if not is_sharded(tensor):
        return tensor.detach()
    return cast(torch.Tensor, cast(Any, tensor.detach()).to_local())


def part(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """View of the rows of `whole` that match this rank's shard of `like`."""
    if not is_sharded(like):
        return whole
    ranks = ranks_of_tensor(like)
    each = -(-like.shape[0] // ranks.size)  # rounded up
    return whole[each * ranks.rank : each * (ranks.rank + 1)]


def sharded_like(own: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is split as `like` is, from the part that this rank holds."""
    if not is_sharded(like):
        return own
    from torch.distributed.tensor import DTensor  # takes a while, and few need it

    about = cast(Any, like)
    return DTensor.from_local(
        own,
        about.device_mesh,
        about.placements,
        run_check=False,
        shape=like.shape,
        stride=_row_major(like.shape),
    )


def whole_masks(own: Tensors, like: Tensors) -> dict[str, torch.Tensor]:
    """Whole masks from the parts that the ranks hold; one bit per element is sent."""
    return {name: _whole_mask(mask, like[name]) for name, mask in own.items()}


def ranks_of_tensors(tensors: Tensors) -> Ranks:
    """The processes over which some tensors are split; this one alone if they are whole."""
    if not tensors:
        return ALONE
    first, *others = tensors.values()
    for name, tensor in tensors.items():
        check_split(name, tensor)
    if any(_mesh(first) != _mesh(other) for other in others):
        raise InputError(
            "some of these tensors are sharded over processes and others are not, or over other "
            "processes: shard all of them (fully_shard on the whole model, without "
            "ignored_params), or none."
        )
    return ranks_of_tensor(first)


def ranks_of_tensor(tensor: torch.Tensor) -> Ranks:
    """The processes over which a tensor is split."""
    return Ranks(cast(Any, tensor).device_mesh.get_group()) if is_sharded(tensor) else ALONE


def check_split(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is split in another way than by rows over one line of processes."""
    if not is_sharded(tensor):
        return
    placements = getattr(tensor, "placements", None)
    if placements is None:
        raise InputError(f"{name!r} is a flat parameter of {FSDP1}")
    if len(placements) != 1 or str(placements[0]) != "S(0)":
        raise InputError(
            f"{name!r} is sharded as {tuple(placements)}, which is not supported (tensor parallel, "
            "hybrid sharding, or rows that are not split): use fully_shard over a mesh of one "
            "dimension, which splits the first dimension, or DDP."
        )


def _whole_mask(own: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if not is_sharded(like):
        return own
    ranks = ranks_of_tensor(like)
    each = -(-like.shape[0] // ranks.size) * prod(like.shape[1:])
    bits = np.zeros(each, dtype=np.bool_)
    bits[: own.numel()] = own.reshape(-1).cpu().numpy()
    packed = ranks.all_gather_tensors(torch.from_numpy(np.packbits(bits)))
    flat = np.concatenate([np.unpackbits(x.numpy(), count=each) for x in packed])
    return torch.from_numpy(flat[: like.numel()].view(np.bool_)).reshape(like.shape)


def _mesh(tensor: torch.Tensor) -> Any:
    return cast(Any, tensor).device_mesh if is_sharded(tensor) else None


def _row_major(shape: torch.Size) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
