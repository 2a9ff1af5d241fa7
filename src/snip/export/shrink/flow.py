"""What flows along one value of a network: its units, and which of them are constants.

A unit is a channel, feature or hidden unit. Units that an addition or an elementwise product
brings together share an identity: they can only be removed together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    @property
    def spare(self) -> Tensor:
        """True where the value is a zero that training leaves alone."""
        return self.zero & self.settled & self.blocked

    def through(self, out: Tensor, axis: int | None = None, **changes: Any) -> Flow:
        """The same units after an operation that gave `out`."""
        axis = self.axis if axis is None else axis
        return replace(self, axis=axis, value=along(out, axis), **changes)

    def mapped(self, rule: Callable[[Tensor], Tensor]) -> Flow:
        """Every entry rearranged by `rule`, the value included."""
        return Flow(self.axis, *(rule(getattr(self, name)) for name in ENTRIES))

    def unknown(self) -> Flow:
        """The same units with nothing known about their values."""
        return live_flow(self.units, self.axis)


def side_by_side(flows: Sequence[Flow]) -> Flow:
    """The units of several flows, one after the other."""
    entries = (torch.cat([getattr(flow, name) for flow in flows]) for name in ENTRIES)
    return Flow(flows[0].axis, *entries)


def live_flow(units: Tensor, axis: int) -> Flow:
    """Units that all depend on the input."""
    nothing = torch.zeros(len(units), dtype=torch.bool)
    return Flow(axis, units, nothing, nothing, nothing, nothing, torch.zeros(len(units)).double())


def along(out: Tensor, axis: int) -> Tensor:
    """The first number at each index along `axis`."""
    first = out.detach().movedim(axis, 0).reshape(out.shape[axis], -1)[:, 0]
    return first.to("cpu", torch.float64, copy=True)


class Identities:
    """Which units are one and the same (a union-find)."""

    def __init__(self) -> None:
        self._parent: list[int] = []

    def new(self, count: int) -> Tensor:
        """Identities for `count` new units."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def unite(self, first: Tensor, second: Tensor) -> None:
        """Make the two units of each pair one."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            self._parent[self._find(b)] = self._find(a)

    def roots(self) -> Tensor:
        """The final identity of every unit."""
        return torch.tensor([self._find(i) for i in range(len(self._parent))], dtype=torch.long)

    def _find(self, unit: int) -> int:
        while self._parent[unit] != unit:
            self._parent[unit] = self._parent[self._parent[unit]]
            unit = self._parent[unit]
        return unit
