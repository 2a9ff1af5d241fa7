"""The units along one dimension of a value, and which of them are constants.

A unit is a channel, feature or hidden unit. Units that an addition or an elementwise product
brings together share an identity: they can only be removed together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

Tensor = torch.Tensor
ENTRIES = ("units", "constant", "uniform", "settled", "blocked", "value")


@dataclass(frozen=True, eq=False)
class Flow:
    """One entry per index along `axis` of a value that the model computed."""

    axis: int
    units: Tensor  # the identity of the unit that owns this index
    constant: Tensor  # no input reaches it: the same for every sample in eval mode
    uniform: Tensor  # ... and at every position, whatever the size of the image
    settled: Tensor  # ... and the same in train mode
    blocked: Tensor  # no gradient passes from here to a trainable parameter
    value: Tensor  # of a uniform constant, in double precision

    @property
    def even(self) -> Tensor:
        """True where the value is one known number, everywhere and for every sample."""
        return self.constant & self.uniform

    @property
    def zero(self) -> Tensor:
        """True where that number is zero."""
        return self.even & (self.value == 0)

    def through(self, out: Tensor, axis: int | None = None, **changes: Any) -> Flow:
        """The same units after an operation that gave `out`."""
        axis = self.axis if axis is None else axis
        return replace(self, axis=axis, value=along(out, axis), **changes)

    def at(self, index: Tensor) -> Flow:
        """The entries at these indices."""
        return Flow(self.axis, *(getattr(self, name)[index] for name in ENTRIES))


def side_by_side(flows: Sequence[Flow]) -> Flow:
    """The units of several flows, one after the other."""
    entries = (torch.cat([getattr(flow, name) for flow in flows]) for name in ENTRIES)
    return Flow(flows[0].axis, *entries)


def plain(axis: int, units: Tensor, *, known: bool = False, value: float = 0) -> Flow:
    """Units of which nothing is known; or, if `known`, that are this value now and forever."""
    flag = torch.full(units.shape, known)
    return Flow(axis, units, flag, flag, flag, flag, torch.full(units.shape, value).double())


def along(out: Tensor, axis: int) -> Tensor:
    """The first number at each index along `axis`."""
    first = out.detach().movedim(axis, 0).reshape(out.shape[axis], -1)[:, 0]
    return first.to("cpu", torch.float64, copy=True)


def spread(numbers: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """A tensor like one of this shape, with one of the numbers at each index along `axis`."""
    column = numbers.double().view(-1, *[1] * (len(shape) - axis - 1))
    return column.expand(*shape[:axis], -1, *shape[axis + 1 :]).clone()
