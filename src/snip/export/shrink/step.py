"""One operation of the network, as a rule sees it; and what happens without a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from snip.export.shrink.flow import Flow
from snip.export.shrink.network import Network

Flows = Any  # a Flow, None (nothing that can be cut), or a tuple of these


@dataclass(frozen=True, eq=False)
class Step:
    """A node of the graph, what the model really computed there, and what flows into it."""

    node: fx.Node
    module: Any  # the nn.Module that is called, or None
    values: Mapping[fx.Node, Any]
    flows: Mapping[fx.Node, Flows]
    out: Any
    network: Network

    def given(self, index: int, name: str, default: Any = None) -> Any:
        """An argument as it stands in the graph: a number, a node, or a structure of these."""
        args = self.node.args
        return args[index] if len(args) > index else self.node.kwargs.get(name, default)

    @property
    def input(self) -> Any:
        """The first argument, as a node."""
        return self.given(0, "input", self.node.kwargs.get("x"))

    @property
    def flow(self) -> Flow | None:
        """What flows into the first argument."""
        return self.flow_of(self.input)

    @property
    def before(self) -> torch.Tensor:
        """The first argument's tensor."""
        tensor: torch.Tensor = self.values[self.input]
        return tensor

    def flow_of(self, argument: Any) -> Flow | None:
        """What flows into an argument, if it is one value with units."""
        found = self.flows.get(argument) if isinstance(argument, fx.Node) else None
        return found if isinstance(found, Flow) else None

    def dimension(self, dim: int) -> int:
        """A dimension of the first argument, counted from the front."""
        return dim % self.before.ndim

    @property
    def described(self) -> str:
        """What this operation is called in a report."""
        if self.node.op == "output":
            return "the output"
        if isinstance(self.module, nn.Module):
            return f"{type(self.module).__name__} {self.node.target!r}"
        return str(getattr(self.node.target, "__name__", self.node.target))


Rule = Callable[[Step], Flows]


def opaque(step: Step) -> Flow | None:
    """An operation that is not understood, or mixes units: all that flows into it stays."""
    for flow in flows_into(step):
        step.network.pin(flow.units, f"read by {step.described}")
    return None


def flows_into(step: Step) -> Iterator[Flow]:
    """Every flow among the arguments."""
    for node in step.node.all_input_nodes:
        yield from _flatten(step.flows.get(node))


def _flatten(found: Flows) -> Iterator[Flow]:
    if isinstance(found, Flow):
        yield found
    elif isinstance(found, tuple):
        for part in found:
            yield from _flatten(part)
