"""Batches for passes in which all processes must take part, as those of FSDP2 are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from snip.common.errors import InputError
from snip.distributed.ranks import Ranks


def no_batches(where: str = "") -> InputError:
    """The error for data that has nothing in it."""
    return InputError(f"there were no batches{where}: give at least one (an exhausted generator?).")


@dataclass(frozen=True)
class Step:
    """One batch of this process, and what it counts beside those of the others."""

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
        with ranks.together():
            for batch in source:  # the next one, if there is one
                weight = weight_of(index, batch)
                break
        weights = ranks.everyones(weight)
        if not index and not all(weights):
            raise no_batches(f" in process {weights.index(0)}")
        total = sum(weights)
        if not total:
            return
        yield Step(batch, total, ranks.size * weight / total)
        index += 1
