"""What is noted while a model runs once: its layers, who reads which units, and what must stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from snip.network.operations import Operation, given
from snip.units.flow import Flow

Tensor = torch.Tensor
Flows = Any  # a Flow, None (nothing that can be cut), or a tuple of these
NOTHING: tuple[Flow, ...] = ()  # no units flow on, and none need be kept for that


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
    constant_rows: Tensor  # bool [rows]: constants because of what they read
    foldable: Tensor  # bool [columns]: a constant that the bias can take over
    refusal: str  # why a constant cannot be folded here


@dataclass
class Ledger:
    """Everything that the rules note."""

    held: Mapping[str, Tensor]
    strict: bool  # a mere zero may grow again: only masked and frozen zeros make a dead weight
    may_grow: bool = False  # a weight counted as dead only because it happens to be zero
    layers: list[Layer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)  # unit -> why it stays
    drawn: list[Tensor] = field(default_factory=list)  # units that dropout draws for
    _parent: list[int] = field(default_factory=list)  # a union-find of the units

    def new(self, count: int) -> Tensor:
        """Identities for `count` new units."""
        start = len(self._parent)
        self._parent.extend(range(start, start + count))
        return torch.arange(start, start + count)

    def unite(self, first: Tensor, second: Tensor) -> None:
        """Make the two units of each pair one."""
        for a, b in zip(first.tolist(), second.tolist(), strict=True):
            self._parent[self._root(b)] = self._root(a)

    def roots(self) -> Tensor:
        """The final identity of every unit."""
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
        """Which weights count as connections: the mask's, else those that are not zero."""
        if name in self.held:
            return self.held[name]
        live = (weight.detach() != 0).cpu()
        if self.strict and weight.requires_grad:
            return torch.ones_like(live)
        self.may_grow |= weight.requires_grad and not bool(live.all())
        return live

    def still(self, name: str, bias: Tensor | None) -> Tensor:
        """Where training leaves a bias as it is."""
        if bias is None or not bias.requires_grad:
            return torch.tensor(True)
        return ~self.held.get(name, torch.tensor(True))


@dataclass(frozen=True, eq=False)
class Step:
    """One operation as a rule sees it: what the model really computed, and what flows into it."""

    node: fx.Node
    module: Any  # the nn.Module that is called, or None
    operation: Operation  # what the table knows of it
    values: Mapping[fx.Node, Any]
    flows: Mapping[fx.Node, Flows]
    out: Any
    ledger: Ledger

    @property
    def name(self) -> str:
        """The name of the layer or function that is called."""
        return str(getattr(self.node.target, "__name__", self.node.target))

    @property
    def input(self) -> Any:
        """The first argument, as a node."""
        return given(self.node, 0, "input", self.node.kwargs.get("x"))

    @property
    def before(self) -> Tensor:
        """The first argument's tensor."""
        tensor: Tensor = self.values[self.input]
        return tensor

    @property
    def flow(self) -> Flow:
        """What flows into the first argument; a LookupError if no units do."""
        found = self.flow_of(self.input)
        if found is None:
            raise LookupError("no units flow into this operation")
        return found

    def flow_of(self, argument: Any) -> Flow | None:
        """What flows into an argument, if it is one value with units."""
        found = self.flows.get(argument) if isinstance(argument, fx.Node) else None
        return found if isinstance(found, Flow) else None

    def again(self, first: Tensor) -> Any:
        """What the operation makes of another first argument."""
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
    """Every flow of a value, which may be a tuple of several."""
    if isinstance(flows, Flow):
        yield flows
    for part in flows if isinstance(flows, tuple) else ():
        yield from _each(part)
