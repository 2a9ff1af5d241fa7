"""From a traced network to one that stays in the engine's layouts from input to output."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from snip.engine.convert.joining import drop_unused, join_chains, join_norms, join_steps
from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.layouts import (
    batch_size,
    flatten_blocks,
    from_blocks,
    from_columns,
    to_blocks,
    to_columns,
)
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.norm import BlockNorm2d
from snip.engine.layers.packing import DENSE
from snip.engine.layers.pool import max_pool_on_blocks, mean_on_blocks, pad_on_blocks
from snip.tracing.arguments import averages_planes, flattens_rows, pool_settings
from snip.tracing.forward import Traced

PLAIN, BLOCKS, COLUMNS = "plain", "blocks", "columns"
RELUS = (nn.ReLU, F.relu, torch.relu, torch.relu_, "relu", "relu_")
SUMS = (operator.add, operator.iadd, torch.add, "add", "add_")


@dataclass
class Value:
    """A node of the old graph in the new one: its layouts so far, and its batch size."""

    forms: dict[str, fx.Node] = field(default_factory=dict)
    batch: fx.Node | None = None

    @property
    def form(self) -> str:
        """The layout it was made in."""
        return next(iter(self.forms))


class Converter:
    """Walks the old graph once and writes the new one, with conversions only where needed."""

    def __init__(self, traced: Traced, root: nn.Module) -> None:
        self.traced, self.root = traced, root
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Value] = {}
        self.notes: dict[str, str] = {}

    def convert(self) -> fx.Graph:
        """The graph of the new network, over the modules of `root`."""
        for node in self.traced.graph.nodes:
            if node not in self.values:  # a ReLU may have been taken into the layer before it
                self.values[node] = self._convert(node)
        join_chains(self.graph)
        join_norms(self.graph, self.root)
        join_steps(self.graph, self.root)
        drop_unused(self.graph)
        self.graph.lint()
        return self.graph

    def _convert(self, node: fx.Node) -> Value:
        module = self._module(node)
        if isinstance(module, SparseConv2d) and module.way != DENSE:
            return self._layer(node, module, BLOCKS)
        if isinstance(module, SparseLinear) and self._rank(node.args[0]) == 2:
            return self._layer(node, module, COLUMNS)
        rule = self._rule(node, module)
        made = None if rule is None else rule(node, module)
        return self._plain(node) if made is None else made

    def _rule(self, node: fx.Node, module: nn.Module | None) -> Callable[..., Value | None] | None:
        """What to do with a node whose first input is in one of the engine's layouts."""
        first = node.args[0] if node.args else None
        if not isinstance(first, fx.Node) or self._form(first) == PLAIN:
            others = node.args[1:] if node.target in SUMS else ()
            if not any(isinstance(a, fx.Node) and self._form(a) != PLAIN for a in others):
                return None
        kind = node.target if module is None else type(module)
        for kinds, rule in (
            (RELUS, self._elementwise),
            ((nn.Identity,), self._same),
            (SUMS, self._sum),
            ((BlockNorm2d,), self._norm),
            ((nn.MaxPool2d, F.max_pool2d, torch.max_pool2d), self._max_pool),
            ((nn.Flatten, torch.flatten, "flatten"), self._flatten),
            (("mean", torch.mean, nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d), self._mean),
            ((nn.ZeroPad2d,), self._pad),
        ):
            if kind in kinds:
                return rule
        return None

    # ---- rules: each returns None where it does not apply, and the node stays plain ----

    def _layer(self, node: fx.Node, module: Any, form: str) -> Value:
        x = self._as(node.args[0], form)
        value = self.values[node.args[0]]  # type: ignore[index]
        follower = self._lone_relu(node)
        module.relu = follower is not None
        method = f"{node.target}.on_{form}"
        args = (x, value.batch) if form == BLOCKS else (x,)
        made = Value({form: self._call(method, args)}, value.batch)
        if follower is not None:
            self.values[follower] = made
        return made

    def _norm(self, node: fx.Node, module: Any) -> Value | None:
        value = self.values[node.args[0]]  # type: ignore[index]
        if value.form != BLOCKS:
            return None
        follower = self._lone_relu(node)
        module.relu = follower is not None
        args = (value.forms[BLOCKS], value.batch)
        made = Value({BLOCKS: self._call(f"{node.target}.on_blocks", args)}, value.batch)
        if follower is not None:
            self.values[follower] = made
        return made

    def _elementwise(self, node: fx.Node, _module: Any) -> Value:
        value = self.values[node.args[0]]  # type: ignore[index]
        return Value({value.form: self._function(F.relu, value.forms[value.form])}, value.batch)

    def _same(self, node: fx.Node, _module: Any) -> Value:
        return self.values[node.args[0]]  # type: ignore[index]

    def _sum(self, node: fx.Node, _module: Any) -> Value | None:
        one, two = node.args[:2]
        if not (isinstance(one, fx.Node) and isinstance(two, fx.Node)) or node.kwargs:
            return None
        if self._shape(one) != self._shape(two):  # broadcasting
            return None
        form = next(f for f in (self._form(one), self._form(two)) if f != PLAIN)
        parts = self._as(one, form), self._as(two, form)
        return Value({form: self._function(torch.add, *parts)}, self.values[one].batch)

    def _max_pool(self, node: fx.Node, module: Any) -> Value | None:
        value = self.values[node.args[0]]  # type: ignore[index]
        settings = pool_settings(node, module)
        if value.form != BLOCKS or settings is None:
            return None
        pooled = self._function(max_pool_on_blocks, value.forms[BLOCKS], value.batch, *settings)
        return Value({BLOCKS: pooled}, value.batch)

    def _flatten(self, node: fx.Node, module: Any) -> Value | None:
        value = self.values[node.args[0]]  # type: ignore[index]
        if not flattens_rows(node, module, self._rank(node.args[0])):
            return None
        if value.form == COLUMNS:
            return value
        columns = self._function(flatten_blocks, value.forms[BLOCKS], value.batch)
        return Value({COLUMNS: columns}, value.batch)

    def _mean(self, node: fx.Node, module: Any) -> Value | None:
        value = self.values[node.args[0]]  # type: ignore[index]
        if value.form != BLOCKS:
            return None
        if module is not None or node.target is F.adaptive_avg_pool2d:
            size = module.output_size if module is not None else node.args[1]
            return self._mean_as_plane(node, value) if size in (1, (1, 1), [1, 1]) else None
        if not averages_planes(node):
            return None
        return Value(
            {COLUMNS: self._function(mean_on_blocks, value.forms[BLOCKS], value.batch)}, value.batch
        )

    def _mean_as_plane(self, node: fx.Node, value: Value) -> Value | None:
        """A pooled 1x1 plane that only a flatten reads is columns already."""
        users = list(node.users)
        flat = all(self._kind(user) in (nn.Flatten, torch.flatten, "flatten") for user in users)
        if not flat:
            return None
        columns = self._function(mean_on_blocks, value.forms[BLOCKS], value.batch)
        return Value({COLUMNS: columns}, value.batch)

    def _pad(self, node: fx.Node, module: Any) -> Value | None:
        value = self.values[node.args[0]]  # type: ignore[index]
        if value.form != BLOCKS:
            return None
        padded = self._function(pad_on_blocks, value.forms[BLOCKS], *module.padding)
        return Value({BLOCKS: padded}, value.batch)

    def _plain(self, node: fx.Node) -> Value:
        """Anything else: as it was, on plain tensors."""
        made = self.graph.node_copy(node, lambda old: self._as(old, PLAIN))
        made.meta = {}
        return Value({PLAIN: made})

    # ---- layouts ----

    def _as(self, node: Any, form: str) -> fx.Node:
        """The new node of `node` in a layout; converted at most once."""
        value = self.values[node]
        if form not in value.forms:
            source, held = value.form, value.forms[value.form]
            if source == PLAIN:
                value.batch = self._function(batch_size, held)
                value.forms[form] = self._function(
                    to_blocks if form == BLOCKS else to_columns, held
                )
            elif source == BLOCKS:
                value.forms[form] = self._function(from_blocks, held, value.batch)
            else:
                value.forms[form] = self._function(from_columns, held)
        elif value.batch is None and form != PLAIN:
            value.batch = self._function(batch_size, value.forms[PLAIN])
        return value.forms[form]

    def _form(self, node: fx.Node) -> str:
        return self.values[node].form

    def _function(self, target: Callable[..., Any], *args: Any) -> fx.Node:
        return self.graph.call_function(target, args)

    def _call(self, method: str, args: tuple[Any, ...]) -> fx.Node:
        """A method of a module other than forward: fetched, then called."""
        owner, _, name = method.rpartition(".")
        module = self.graph.get_attr(owner)
        return self.graph.call_method(name, (module, *args))

    # ---- the old graph ----

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _kind(self, node: fx.Node) -> Any:
        module = self._module(node)
        return node.target if module is None else type(module)

    def _lone_relu(self, node: fx.Node) -> fx.Node | None:
        """The ReLU behind a node that nothing else reads, to be computed with it."""
        if len(node.users) != 1 or self._calls(node) > 1:
            return None
        (user,) = node.users
        return user if self._kind(user) in RELUS else None

    def _calls(self, node: fx.Node) -> int:
        """How often the network calls this node's module: a shared one fuses nothing."""
        return sum(
            n.op == "call_module" and n.target == node.target for n in self.traced.graph.nodes
        )

    def _shape(self, node: Any) -> tuple[int, ...]:
        return tuple(node.meta["shape"]) if "shape" in node.meta else ()

    def _rank(self, node: Any) -> int:
        return len(self._shape(node)) if isinstance(node, fx.Node) else 0
