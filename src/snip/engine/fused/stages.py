"""Straight networks, whose layers follow one another in a line: what they are made of.

Such a network can run as one native call, which saves what torch spends on each operation: in a
small network that is most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from snip.engine.kernels.straight import MOST_LAYERS
from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.layouts import (
    batch_size,
    flatten_blocks,
    from_columns,
    to_blocks,
    to_columns,
)
from snip.engine.layers.linear import SparseLinear, linear_chain
from snip.engine.layers.packing import SPARSE
from snip.engine.layers.pool import max_pool_on_blocks
from snip.network.operations import flattens_rows


@dataclass(frozen=True)
class Stage:
    """One layer of the line: a sparse layer by its name, a pooling, or a ReLU."""

    kind: str  # "linear", "conv", "pool" or "relu"
    module: str = ""
    window: tuple[Any, ...] = ()  # of a pooling: kernel, stride, padding, dilation, ceil_mode


def straight_stages(graph: fx.Graph, root: nn.Module) -> tuple[Stage, ...] | None:
    """The stages of a converted graph from input to output; None if it is not a straight line."""
    nodes = [n for n in graph.nodes if n.op != "get_attr" and n.target is not batch_size]
    if sum(n.op == "placeholder" for n in nodes) != 1:
        return None
    stages: list[Stage] = []
    for before, node in pairwise(nodes):
        if node.op == "output":
            last = before.target is from_columns and node.args[0] is before
            return tuple(stages) if last and _runs_once(stages) else None
        found = None if before not in node.all_input_nodes else _stages(node, root, not stages)
        if found is None:
            return None
        stages += found
    return None


def _stages(node: fx.Node, root: nn.Module, first: bool) -> list[Stage] | None:
    """The stages that one node stands for; None if the native call cannot do what it does."""
    target = node.target
    if target in (to_columns, to_blocks) or (first and _flattens(node, root)):
        return []  # the native network reads plain rows, whatever their shape
    if target in (from_columns, flatten_blocks):
        return []
    if target is max_pool_on_blocks:
        return [Stage("pool", window=tuple(node.args[2:]))]
    if target is F.relu:
        return [Stage("relu")]
    if target in ("on_columns", "on_blocks", linear_chain):
        names = [str(a.target) for a in node.all_input_nodes if a.op == "get_attr"]
        layers = [(name, root.get_submodule(name)) for name in names]
        if all(_supported(layer) for _, layer in layers):
            return [
                Stage("linear" if isinstance(layer, SparseLinear) else "conv", name)
                for name, layer in layers
            ]
    return None


def _runs_once(stages: list[Stage]) -> bool:
    """Whether no layer is called twice: it would have two gradients, and there is room for one."""
    names = [stage.module for stage in stages if stage.module]
    return bool(names) and len(names) == len(set(names)) and len(stages) <= MOST_LAYERS


def _supported(layer: nn.Module) -> bool:
    """Whether a layer runs sparse: the native call knows no other way."""
    return isinstance(layer, (SparseLinear, SparseConv2d)) and layer.way == SPARSE


def _flattens(node: fx.Node, root: nn.Module) -> bool:
    """Whether a node only makes rows of its input: flatten(1), view(-1, features)."""
    if node.op == "call_module":
        module = root.get_submodule(str(node.target))
        return isinstance(module, nn.Flatten) and flattens_rows(node, module)
    if node.target in (torch.flatten, "flatten"):
        return flattens_rows(node, None)
    settings = (*node.args[1:], *node.kwargs.values())
    if node.target in ("view", "reshape"):
        return len(settings) == 2 and type(settings[0]) is int and settings[0] == -1
    return False
