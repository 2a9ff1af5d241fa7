"""The graph that a converter writes: each value of the old graph in the layouts it is needed in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from snip.engine.layers.layouts import (
    BLOCKS,
    PLAIN,
    batch_size,
    from_blocks,
    from_columns,
    from_lines,
    to_blocks,
    to_columns,
)
from snip.network.graph import facts


@dataclass
class Value:
    """What the new graph has for one node of the old.

    A node per layout needed so far, and the node of its batch size.
    """

    forms: dict[str, fx.Node] = field(default_factory=dict)
    batch: fx.Node | None = None

    @property
    def form(self) -> str:
        """The layout it was made in."""
        return next(iter(self.forms), PLAIN)

    @property
    def made(self) -> fx.Node:
        """The node that made it, in that layout."""
        return self.forms[self.form]


class NewGraph:
    """A graph, and what it has for each node of the old one."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Value] = {}

    def as_form(self, node: Any, form: str) -> fx.Node:
        """The new node of `node` in a layout; converted at most once."""
        value = self.values[node]
        if form not in value.forms:
            if value.form == PLAIN:
                to_form = to_blocks if form == BLOCKS else to_columns
                value.batch = self.function(batch_size, value.made)
                value.forms[form] = self.function(to_form, value.made)
            elif value.form == BLOCKS:
                back = from_lines if len(shape_of(node)) == 3 else from_blocks
                value.forms[form] = self.function(back, value.made, value.batch)
            else:
                value.forms[form] = self.function(from_columns, value.made)
        return value.forms[form]

    def made(
        self, form: str, function: Callable[..., Any], *args: Any, batch: fx.Node | None
    ) -> Value:
        """A new value, which a call of a function makes in a layout."""
        return Value({form: self.function(function, *args)}, batch)

    def function(self, target: Callable[..., Any], *args: Any) -> fx.Node:
        """A new node that calls a function."""
        return self.graph.call_function(target, args)

    def copy(self, node: fx.Node, argument: Callable[[fx.Node], fx.Node]) -> fx.Node:
        """A new node that does what an old one does, on what `argument` gives for its inputs."""
        made = self.graph.node_copy(node, argument)
        made.meta = {}  # the shape there is that of a plain tensor
        return made


def shape_of(node: Any) -> tuple[int, ...]:
    """The shape of a node's result on the example; empty if it has none."""
    return facts(node).shape if isinstance(node, fx.Node) else ()
