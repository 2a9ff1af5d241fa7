"""From a traced network to one that stays in the engine's layouts from input to output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from snip.engine.convert.joining import drop_unused, join_chains, join_norms, join_steps
from snip.engine.convert.new_graph import NewGraph, Value, shape_of
from snip.engine.layers.conv import SparseConvolution
from snip.engine.layers.layouts import BLOCKS, COLUMNS, PLAIN, flatten_blocks
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.norm import BlockNorm
from snip.engine.layers.packing import DENSE
from snip.engine.layers.pool import (
    lines_settings,
    max_pool_on_blocks,
    mean_on_blocks,
    pad_on_blocks,
)
from snip.network.graph import Graph, facts
from snip.network.operations import (
    Kind,
    averages_planes,
    flattens_rows,
    given,
    pool_settings,
    setting,
)
from snip.network.parameters import CONSTANTS


class Converter:
    """Walks the old graph once and writes the new one, with conversions only where needed."""

    def __init__(self, traced: Graph, root: nn.Module) -> None:
        self.old, self.constants, self.root = traced.graph, traced.constants, root
        self.new = NewGraph()
        self.calls = Counter(n.target for n in self.old.nodes if n.op == "call_module")
        self.rules: dict[Kind, Callable[..., Value | None]] = {
            Kind.POINTWISE: self._pointwise,
            Kind.SAME: lambda node, value: value,
            Kind.SUM: self._of_two,
            Kind.PRODUCT: self._of_two,
            Kind.MAX_POOL: self._max_pool,
            Kind.FLATTEN: self._flatten,
            Kind.MEAN: self._mean,
            Kind.ADAPTIVE_AVERAGE_POOL: self._mean,
            Kind.PAD: self._pad,
        }

    def convert(self) -> fx.Graph:
        """The graph of the new network, over the modules of `root`."""
        for node in self.old.nodes:
            if node not in self.new.values:  # a ReLU may have been taken into the layer before it
                self.new.values[node] = self._convert(node)
        join_chains(self.new.graph)
        join_norms(self.new.graph, self.root)
        join_steps(self.new.graph, self.root)
        drop_unused(self.new.graph)
        self.new.graph.lint()
        return self.new.graph

    def _convert(self, node: fx.Node) -> Value:
        module = self.root.get_submodule(str(node.target)) if node.op == "call_module" else None
        first = node.args[0] if node.args else None
        rank = len(shape_of(first))
        if isinstance(module, SparseConvolution) and module.way != DENSE:
            alone = len(node.args) == 1 and not node.kwargs  # no size asked of a transposed one
            if rank == module.POSITIONS + 2 and alone:
                return self._layer(node, module, BLOCKS)
        if isinstance(module, SparseLinear) and rank == 2:
            return self._layer(node, module, COLUMNS)
        value = self.new.values[first] if isinstance(first, fx.Node) else Value()
        if isinstance(module, BlockNorm) and value.form == BLOCKS:
            return self._layer(node, module, BLOCKS)
        known = facts(node).operation
        if known.kind is Kind.CONCATENATE:
            return self._concatenate(node) or self._plain(node)
        converted = any(self.new.values[given].form != PLAIN for given in node.all_input_nodes)
        if not value.forms or not converted or not known.on_layouts:
            return self._plain(node)
        return self.rules[known.kind](node, value) or self._plain(node)

    # ---- rules: each returns None where it does not apply, and the node stays plain ----

    def _layer(self, node: fx.Node, module: Any, form: str) -> Value:
        """Call a layer on its own layout.

        A ReLU that alone reads the result is computed in the same call.
        """
        x = self.new.as_form(node.args[0], form)
        batch = self.new.values[node.args[0]].batch  # type: ignore[index]
        follower = self._lone_relu(node)
        module.relu = follower is not None
        owner = self.new.graph.get_attr(str(node.target))
        args = (owner, x, batch) if form == BLOCKS else (owner, x)
        made = Value({form: self.new.graph.call_method(f"on_{form}", args)}, batch)
        if follower is not None:
            self.new.values[follower] = made
        return made

    def _pointwise(self, node: fx.Node, value: Value) -> Value | None:
        """The operation itself, on the layout that is there."""
        if node.all_input_nodes != [node.args[0]]:  # bounds given as tensors
            return None
        if facts(node).operation.name == "relu":
            return self.new.made(value.form, F.relu, value.made, batch=value.batch)
        x = value.made
        if facts(node).writes:
            x = self.new.function(torch.clone, x)
        return Value({value.form: self.new.copy(node, lambda _: x)}, value.batch)

    def _of_two(self, node: fx.Node, value: Value) -> Value | None:
        if len(node.args) != 2 or node.kwargs:  # alpha
            return None
        one, two = node.args
        if not (isinstance(one, fx.Node) and isinstance(two, fx.Node)):
            return None
        if not self._same_batch(one, two):  # broadcasting
            return None
        if value.form == PLAIN and facts(node).writes:
            return None  # the network's own input, which its caller sees overwritten
        form = next(v.form for v in (self.new.values[one], self.new.values[two]) if v.form != PLAIN)
        parts = self.new.as_form(one, form), self.new.as_form(two, form)
        function = getattr(torch, facts(node).operation.name)
        return self.new.made(form, function, *parts, batch=self.new.values[one].batch)

    def _concatenate(self, node: fx.Node) -> Value | None:
        """Channels side by side, which blocks have in the same dimension as plain tensors."""
        parts, dim = node.args[0], given(node, 1, "dim", 0)
        if not isinstance(parts, (list, tuple)) or not all(isinstance(p, fx.Node) for p in parts):
            return None
        values = [self.new.values[part] for part in parts]  # type: ignore[index]
        sizes = [(shape_of(p)[:1], (facts(p).doubled or ())[:1]) for p in parts]  # type: ignore[arg-type]
        ranks = {len(shape_of(part)) for part in parts}
        alike = ranks in ({3}, {4}) and all(size == sizes[0] for size in sizes)
        if dim != 1 or not alike or BLOCKS not in (value.form for value in values):
            return None
        blocks = [self.new.as_form(part, BLOCKS) for part in parts]
        return self.new.made(BLOCKS, torch.cat, blocks, 1, batch=values[0].batch)

    def _max_pool(self, node: fx.Node, value: Value) -> Value | None:
        settings = pool_settings(node, facts(node).module)
        if value.form != BLOCKS or settings is None:
            return None
        if facts(node).operation.dimensions == 1:
            settings = lines_settings(*settings)
        args = (value.made, value.batch, *settings)
        return self.new.made(BLOCKS, max_pool_on_blocks, *args, batch=value.batch)

    def _flatten(self, node: fx.Node, value: Value) -> Value | None:
        if not self._flattens_rows(node):
            return None
        if value.form == COLUMNS:
            return value
        args = value.made, value.batch
        return self.new.made(COLUMNS, flatten_blocks, *args, batch=value.batch)

    def _mean(self, node: fx.Node, value: Value) -> Value | None:
        """A mean over planes. A pooled 1x1 plane that only a flatten reads is columns already."""
        if facts(node).operation.kind is Kind.MEAN:
            applies = averages_planes(node) and len(shape_of(node.args[0])) == 4
        else:
            size = setting(node, facts(node).module, 1, "output_size")
            lone = size in (1, (1,), [1], (1, 1), [1, 1])
            applies = lone and all(map(self._flattens_rows, node.users))
        if value.form != BLOCKS or not applies:
            return None
        args = value.made, value.batch
        return self.new.made(COLUMNS, mean_on_blocks, *args, batch=value.batch)

    def _pad(self, node: fx.Node, value: Value) -> Value | None:
        if value.form != BLOCKS or len(shape_of(node.args[0])) != 4:
            return None
        pad: Any = facts(node).module
        args = (value.made, *pad.padding)
        return self.new.made(BLOCKS, pad_on_blocks, *args, batch=value.batch)

    def _plain(self, node: fx.Node) -> Value:
        """Anything else: as it was, on plain tensors."""
        if node.op == "get_attr" and node.target in self.constants:
            return Value({PLAIN: self.new.graph.get_attr(f"{CONSTANTS}.{node.target}")})
        made = self.new.copy(node, lambda old: self.new.as_form(old, PLAIN))
        made.meta["shape"] = shape_of(node)
        return Value({PLAIN: made})

    # ---- the old graph ----

    def _flattens_rows(self, node: fx.Node) -> bool:
        """Whether a node makes one row of each element of the batch."""
        is_flatten = facts(node).operation.kind is Kind.FLATTEN
        rank = len(shape_of(node.args[0]))
        return is_flatten and flattens_rows(node, facts(node).module, rank)

    def _same_batch(self, one: fx.Node, two: fx.Node) -> bool:
        """Whether two tensors have one shape at any batch size: as given, and at twice that."""
        twice = facts(one).doubled
        return shape_of(one) == shape_of(two) and twice is not None and twice == facts(two).doubled

    def _lone_relu(self, node: fx.Node) -> fx.Node | None:
        """The ReLU behind a layer that nothing else reads, to be computed with it.

        A layer that is called twice takes none in: it may stand behind one of the calls only.
        """
        if len(node.users) != 1 or self.calls[node.target] > 1:
            return None
        (user,) = node.users
        return user if facts(user).operation.name == "relu" else None
