"""Ranks that work on one model, their collectives, and data that all of them go through in step.

In one process every method here is the identity and nothing of torch.distributed is called, so
that the code of scoring and selection is the same for one rank and for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from snip.common.checks import differences
from snip.common.errors import InputError, RankError
from snip.common.text import first_line, shortened

LONGEST = 500  # characters of one process's error that the others repeat


class Ranks:
    """The ranks of a group; without a group this process alone."""

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.rank = 0 if group is None else dist.get_rank(group)

    @property
    def alone(self) -> bool:
        """True for a single rank."""
        return self.size == 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Write the sum of all ranks' tensors of this shape into `tensor`, and return it."""
        if not self.alone:
            moved = tensor.to(self._device(tensor))
            with answered(self):
                dist.all_reduce(moved, group=self.group)
            if moved is not tensor:
                tensor.copy_(moved)
        return tensor

    def all_gather(self, value: Any) -> list[Any]:
        """The value of each rank, in their order. For a few numbers or words."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.size
        with answered(self):
            dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, value: Any) -> Any:
        """The value of the first rank."""
        if self.alone:
            return value
        box = [value]
        with answered(self):
            source = dist.get_global_rank(self.group, 0)
            dist.broadcast_object_list(box, source, group=self.group)
        return box[0]

    def all_gather_tensors(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensor of each rank, in their order; all have the same shape and dtype."""
        if self.alone:
            return [tensor]
        moved = tensor.to(self._device(tensor))
        found = [torch.empty_like(moved) for _ in range(self.size)]
        with answered(self):
            dist.all_gather(found, moved, group=self.group)
        return [one.to(tensor.device) for one in found]

    @contextmanager
    def raise_on_all(self) -> Iterator[None]:
        """Raise on all ranks, with the same words, if the block fails on one.

        No collective may run inside the block: a rank that has failed would not answer.
        """
        if self.alone:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as found:  # whatever it is, the others must not wait
            error = found
        said = self.all_gather(None if error is None else shortened(_told(error), LONGEST))
        if error is not None:
            raise error
        failed = next((rank for rank, text in enumerate(said) if text is not None), None)
        if failed is not None:
            raise InputError(f"in process {failed}: {said[failed]}")

    def agree(self, facts: Mapping[str, Any], advice: str) -> None:
        """Raise on every rank unless all have the same facts."""
        said = self.all_gather(facts)
        for rank, theirs in enumerate(said):
            if theirs != said[0]:
                where = f"in process {rank}", "in process 0"
                differ = differences(theirs, said[0], *where)
                raise InputError(f"the processes differ: {differ}. {advice}")

    def _device(self, tensor: torch.Tensor) -> torch.device:
        """Device from which this group can send a tensor: its own, or the GPU for NCCL."""
        if tensor.is_cuda or "nccl" not in dist.get_backend(self.group):
            return tensor.device
        return torch.device("cuda", torch.cuda.current_device())


def _told(error: Exception) -> str:
    """Message of an error; one that is not Snip's may need its kind to make sense."""
    own = isinstance(error, (InputError, RankError))
    return str(error) if own else f"{type(error).__name__}: {error}"


@contextmanager
def answered(ranks: Ranks) -> Iterator[None]:
    """Turn what torch raises when another process is gone or silent into a sentence.

    Gloo raises a plain RuntimeError that names the file of its transport, other back ends torch's
    own kinds.
    """
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or "gloo/transport" in str(error)
        if ranks.alone or isinstance(error, RankError) or not lost:
            raise
        raise RankError(
            f"process {ranks.rank} of {ranks.size} has lost another one, which died or did not "
            f"answer within the group's time-out (init_process_group(timeout=...)): "
            f"{first_line(error)} Nothing was pruned. Start all processes again."
        ) from error


ALONE = Ranks()


def everybody() -> Ranks:
    """All ranks that were started together; this one alone without torch's process group."""
    at_work = dist.is_available() and dist.is_initialized()
    return Ranks(dist.group.WORLD) if at_work else ALONE


def no_batches(where: str = "") -> InputError:
    """The error for data that has nothing in it."""
    return InputError(f"there were no batches{where}: give at least one (an exhausted generator?).")


@dataclass(frozen=True)
class Step:
    """One batch of this rank, and its weight beside those of the others."""

    batch: Any
    weight: int  # of this step's batches of all processes together
    scale: float = 1.0  # of this process's loss, so that the mean over processes is over the data


def steps(
    batches: Iterable[Any], weight_of: Callable[[int, Any], int], ranks: Ranks, in_step: bool
) -> Iterator[Step]:
    """The batches of this process; with `in_step` as many in every process.

    `weight_of(index, batch)` is what a batch counts. A process that has no batch left goes on with
    its last one at weight 0 until all are done.
    """
    if not in_step:
        for index, batch in enumerate(batches):
            yield Step(batch, weight_of(index, batch))
        return
    source, batch, index = iter(batches), None, 0
    while True:
        weight = 0
        with ranks.raise_on_all():
            for batch in source:  # the next one, if there is one
                weight = weight_of(index, batch)
                break
        weights = ranks.all_gather(weight)
        if not index and not all(weights):
            raise no_batches(f" in process {weights.index(0)}")
        total = sum(weights)
        if not total:
            return
        yield Step(batch, total, ranks.size * weight / total)
        index += 1
