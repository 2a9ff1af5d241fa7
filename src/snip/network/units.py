"""Units that flow through a network: what the rules of `unit_rules` read and note.

A unit is a channel, feature or hidden unit. Units that an addition or an elementwise product
brings together share an identity: they can only be removed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from snip.network.graph import facts
from snip.network.operations import Operation, given

Tensor = torch.Tensor
Flows = Any  # a Flow, None (nothing that can be cut), or a tuple of these


@dataclass(frozen=True, eq=False)
class Flow:
    """One entry per index along `axis` of a value that the model computed."""

    axis: int
    units: Tensor  # the identity of the unit that owns this index
    constant: Tensor  # no input reaches it: the same for every sample in eval mode
    uniform: Tensor  # ... and at every position, whatever the size of the image
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
        """Return the same units after an operation that gave `out`."""
        axis = self.axis if axis is None else axis
        return replace(self, axis=axis, value=along(out, axis), **changes)

    def at(self, index: Tensor) -> Flow:
        """Return the entries at these indices."""
        entries = (self.units, self.constant, self.uniform, self.value)
        return Flow(self.axis, *(entry[index] for entry in entries))


NOTHING: tuple[Flow, ...] = ()  # no units flow on, and none need be kept for that


def plain(axis: int, units: Tensor, *, known: bool = False, value: float = 0) -> Flow:
    """Return units of which nothing is known; or, if `known`, that always have this value."""
    flag = torch.full(units.shape, known)
    return Flow(axis, units, flag, flag, torch.full(units.shape, value).double())


def side_by_side(flows: Sequence[Flow]) -> Flow:
    """Concatenate the units of several flows."""
    names = ("units", "constant", "uniform", "value")
    entries = (torch.cat([getattr(flow, name) for flow in flows]) for name in names)
    return Flow(flows[0].axis, *entries)


def forgotten(flows: Flows) -> Flows:
    """Return the same units, of which nothing else is known any more."""
    if isinstance(flows, tuple):
        return tuple(map(forgotten, flows))
    return plain(flows.axis, flows.units) if isinstance(flows, Flow) else flows


def along(out: Tensor, axis: int) -> Tensor:
    """Return the first number at each index along `axis`."""
    first = out.detach().movedim(axis, 0).reshape(out.shape[axis], -1)[:, 0]
    return first.to("cpu", torch.float64, copy=True)


def spread(numbers: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """Make a tensor of this shape, but with one of the numbers at each index along `axis`."""
    column = numbers.double().view(-1, *[1] * (len(shape) - axis - 1))
    return column.expand(*shape[:axis], -1, *shape[axis + 1 :]).clone()


@dataclass(frozen=True, eq=False)
class Layer:
    """A module whose tensors are cut when units go."""

    name: str
    module: Any
    source: Flow | None  # what it reads; None if that cannot be cut or is cut with the outputs
    result: Flow
    makes_units: bool = True  # a norm only passes them on


@dataclass(frozen=True, eq=False)
class Reader:
    """A weight matrix between units: who reads whom, and whose constants a bias can replace."""

    name: str  # of the layer
    bias: str  # the parameter of the layer that takes over constants
    weight: Tensor  # [rows, columns, positions of a kernel]
    live: Tensor  # bool [rows, columns]
    source: Flow  # [columns]
    rows: Tensor  # units [rows]
    foldable: Tensor  # bool [columns]: a constant that the bias can take over
    refusal: str  # why a constant cannot be folded here


@dataclass
class Ledger:
    """Everything that the rules note while a network runs once."""

    masks: Mapping[str, Tensor]
    zeros_may_grow: bool  # of a weight without a mask: then they count as connections
    layers: list[Layer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)  # unit -> why it stays
    _parent: list[int] = field(default_factory=list)  # a union-find of the units

    def new(self, count: int) -> Tensor:
        """Make identities for `count` new units."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def unite(self, first: Tensor, second: Tensor) -> None:
        """Make the two units of each pair one."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            self._parent[self._root(b)] = self._root(a)

    def roots(self) -> Tensor:
        """Return the final identity of every unit."""
        return torch.tensor([self._root(unit) for unit in range(len(self._parent))]).long()

    def _root(self, unit: int) -> int:
        while self._parent[unit] != unit:
            self._parent[unit] = unit = self._parent[self._parent[unit]]
        return unit

    def pin(self, units: Tensor, reason: str) -> None:
        """Keep these units, whatever happens."""
        for unit in units.tolist():
            self.pinned.setdefault(unit, reason)

    def live(self, name: str, weight: Tensor) -> Tensor:
        """True where a weight counts as a connection: by its mask, else where it is not zero."""
        if name in self.masks:
            return self.masks[name]
        live = (weight.detach() != 0).cpu()
        return torch.ones_like(live) if self.zeros_may_grow and weight.requires_grad else live


@dataclass(frozen=True, eq=False)
class Step:
    """One operation as a rule sees it: what the model really computed, and what flows into it."""

    node: fx.Node
    values: Mapping[fx.Node, Any]
    flows: Mapping[fx.Node, Flows]
    out: Any
    ledger: Ledger

    @property
    def operation(self) -> Operation:
        """Row of the table of operations."""
        return facts(self.node).operation

    @property
    def module(self) -> Any:
        """The layer that is called, or None."""
        return facts(self.node).module

    @property
    def name(self) -> str:
        """Name of the layer or function that is called."""
        return str(getattr(self.node.target, "__name__", self.node.target))

    @property
    def input(self) -> Any:
        """First argument, as a node."""
        return given(self.node, 0, "input", self.node.kwargs.get("x"))

    @property
    def before(self) -> Tensor:
        """Tensor of the first argument."""
        tensor: Tensor = self.values[self.input]
        return tensor

    @property
    def flow(self) -> Flow:
        """Flow into the first argument; a LookupError if no units flow there."""
        flow = self.flow_of(self.input)
        if flow is None:
            raise LookupError("no units flow into this operation")
        return flow

    def flow_of(self, argument: Any) -> Flow | None:
        """Return what flows into an argument, if it is one value with units."""
        flows = self.flows.get(argument) if isinstance(argument, fx.Node) else None
        return flows if isinstance(flows, Flow) else None

    def again(self, first: Tensor) -> Any:
        """Run the operation on another first argument."""
        if self.module is not None:
            return self.module(first)
        values = {**self.values, self.input: first}
        args, kwargs = fx.map_arg((self.node.args, self.node.kwargs), values.__getitem__)
        if self.node.op == "call_method":
            return getattr(args[0], str(self.node.target))(*args[1:], **kwargs)
        return self.node.target(*args, **kwargs)  # type: ignore[operator]

    def keep_all(self) -> None:
        """Keep all units that flow into an operation that is not understood or mixes units."""
        for node in self.node.all_input_nodes:
            for flow in _each(self.flows.get(node)):
                self.ledger.pin(flow.units, f"read by {self.name!r}")


def _each(flows: Flows) -> Iterator[Flow]:
    if isinstance(flows, Flow):
        yield flows
    for part in flows if isinstance(flows, tuple) else ():
        yield from _each(part)
