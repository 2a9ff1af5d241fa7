"""What is noted while a model runs once: its layers, who reads which units, and what must stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from snip.export.shrink.flow import Flow, Identities
from snip.tracing.arguments import given
from snip.tracing.operations import Operation

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

    @property
    def makes_units(self) -> bool:
        """Whether the units begin here (a norm only passes them on)."""
        return not isinstance(self.module, nn.modules.batchnorm._BatchNorm)


@dataclass(frozen=True, eq=False)
class Reader:
    """A weight matrix between units: who reads whom, and whose constants a bias can replace."""

    name: str
    source: Flow  # [columns]
    rows: Tensor  # units [rows]
    live: Tensor  # bool [rows, columns]
    foldable: Tensor  # bool [columns]: a constant that the bias can take over
    constant_rows: Tensor  # bool [rows]: constants because of what they read
    refusal: str  # why a constant cannot be folded here


@dataclass
class Ledger:
    """Everything that the rules note."""

    held: Mapping[str, Tensor]
    strict: bool  # a mere zero may grow again: only masked and frozen zeros make a dead weight
    units: Identities = field(default_factory=Identities)
    layers: list[Layer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)  # unit -> why it stays
    drawn: list[Tensor] = field(default_factory=list)  # units that dropout draws for

    def pin(self, units: Tensor, reason: str) -> None:
        """Keep these units, whatever happens."""
        for unit in units.tolist():
            self.pinned.setdefault(unit, reason)

    def live(self, name: str, weight: Tensor) -> Tensor:
        """Which weights count as connections: the mask's, else those that are not zero."""
        if name in self.held:
            return self.held[name]
        if self.strict and weight.requires_grad:
            return torch.ones(weight.shape, dtype=torch.bool)
        return (weight.detach() != 0).cpu()

    def trains(self, name: str, bias: Tensor | None) -> Tensor:
        """Where training may move a bias."""
        if bias is None or not bias.requires_grad:
            return torch.tensor(False)
        return self.held.get(name, torch.tensor(True))


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
        """The name of the layer that is called."""
        return str(self.node.target)

    @property
    def input(self) -> Any:
        """The first argument, as a node."""
        return given(self.node, 0, "input", self.node.kwargs.get("x"))

    @property
    def before(self) -> Tensor:
        """The first argument's tensor."""
        tensor: Tensor = self.values[self.input]
        return tensor

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
            self._pin(self.flows.get(node), f"read by {self.described}")

    def _pin(self, flows: Flows, reason: str) -> None:
        if isinstance(flows, Flow):
            self.ledger.pin(flows.units, reason)
        for part in flows if isinstance(flows, tuple) else ():
            self._pin(part, reason)

    @property
    def described(self) -> str:
        """What this operation is called in a report."""
        if self.node.op == "output":
            return "the output"
        if self.module is not None:
            return f"{type(self.module).__name__} {self.node.target!r}"
        return str(getattr(self.node.target, "__name__", self.node.target))
