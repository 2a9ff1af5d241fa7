"""Decide how each layer runs, by timing it once on the user's machine.

Most layers run "sparse". One that is hardly sparse may be faster by "winograd", a dense kernel on
blocks, or "dense", in torch itself; but torch takes plain tensors, and each change of layout costs
a pass over memory. The cheapest assignment of all layers together is a minimum cut between those
that take blocks and those that take plain tensors, its two ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import networkx as nx  # torch itself depends on it
import torch
from torch import fx, nn

from snip.common.console import track
from snip.engine.convert.linear_ways import dense_linear_wins
from snip.engine.convert.timings import Timings
from snip.engine.convert.trials import best, dense_wins, machine, round_of, run_as, setting
from snip.engine.layers.conv import SparseConvolution
from snip.engine.layers.layouts import BLOCKS, PLAIN, from_blocks, to_blocks
from snip.engine.layers.linear import PlainLinear
from snip.engine.layers.norm import BlockNorm
from snip.engine.layers.packing import DENSE, SPARSE, WINOGRAD, PackedModule, Ways
from snip.engine.layers.recurrent import SparseRecurrent
from snip.engine.layers.volume import SparseConv3d
from snip.network.graph import Graph, facts
from snip.network.operations import Kind

# Below this much work (multiply-adds, about a millisecond) timing costs more than it saves, and
# converting would break a straight network in two.
LITTLE = 1 << 26


def fastest_ways(traced: Graph, root: nn.Module, timings: Timings, *, training: bool) -> Ways:
    """Layer name -> way, for the layers that do not run sparse."""
    with torch.set_grad_enabled(training), torch.random.fork_rng(devices=[]):
        return _fastest_ways(traced, root, timings, training)


def _fastest_ways(traced: Graph, root: nn.Module, timings: Timings, training: bool) -> Ways:
    nodes = [n for n in traced.graph.nodes if n.op == "call_module"]
    layers = [(n, root.get_submodule(str(n.target))) for n in nodes]
    chosen: Ways = {}
    convolutions, graph = [], nx.DiGraph()
    fixed = _fixed(traced)
    for node, layer in track(layers, description="timing layers", total=len(layers)):
        name, first = str(node.target), fixed.issuperset(node.all_input_nodes)
        if isinstance(layer, PlainLinear):
            shape = _input_shape(node)
            if dense_linear_wins(layer, shape, timings, first=first, training=training):
                chosen[name] = DENSE
        elif isinstance(layer, (SparseRecurrent, SparseConv3d)):
            if _dense_plain_wins(layer, node, timings=timings, first=first, training=training):
                chosen[name] = DENSE
        elif isinstance(layer, SparseConvolution) and _is_batch(layer, node):
            seconds = _conv_times(layer, node, timings, first=first, training=training)
            on_blocks = min((SPARSE, WINOGRAD), key=lambda way: seconds[way])
            graph.add_edge(BLOCKS, node, capacity=seconds[DENSE])
            graph.add_edge(node, PLAIN, capacity=seconds[on_blocks])
            convolutions.append((node, name))
            if on_blocks == WINOGRAD:
                chosen[name] = WINOGRAD
    if not convolutions:
        return chosen
    ranks = {len(facts(node).shape) for node, _ in convolutions}
    for node in traced.graph.nodes:
        if _is_plain(node, root):
            graph.add_edge(node, PLAIN)  # no capacity means no cut
    _add_borders(graph, traced, ranks, timings)
    _, (_, plain) = nx.minimum_cut(graph, BLOCKS, PLAIN)
    return chosen | {name: DENSE for node, name in convolutions if node in plain}


def _fixed(traced: Graph) -> set[fx.Node]:
    """The nodes before any parameter: training needs no gradients of them, nor of the input."""
    found: set[fx.Node] = set()
    for node in traced.graph.nodes:
        module = facts(node).module
        learned = [] if module is None else list(module.parameters())
        if node.op != "get_attr" and not learned and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _is_batch(layer: SparseConvolution, node: fx.Node) -> bool:
    """Whether a convolution is called with a batch, not with a single plane or line."""
    return len(facts(node).shape) == layer.POSITIONS + 2


def _is_plain(node: fx.Node, root: nn.Module) -> bool:
    """Whether a node gives plain tensors, or takes them, however its neighbours run."""
    module = root.get_submodule(str(node.target)) if node.op == "call_module" else None
    if isinstance(module, (SparseConvolution, BlockNorm)):
        return False
    known = facts(node).operation
    return not known.on_layouts and known.kind is not Kind.CONCATENATE


def _add_borders(graph: nx.DiGraph, traced: Graph, ranks: set[int], timings: Timings) -> None:
    """Add what a change of layout between neighbours of these ranks costs, in both directions."""
    for node in traced.graph.nodes:
        shape = facts(node).shape
        if len(shape) not in ranks:
            continue  # matrices are cheap to convert, and lie behind every convolution
        cost = _conversion_time(shape, timings)
        for user in node.users:
            for one, two in ((node, user), (user, node)):
                graph.add_edge(one, two, capacity=cost)


def _conv_times(
    layer: SparseConvolution, node: fx.Node, timings: Timings, *, first: bool, training: bool
) -> dict[str, float]:
    """Seconds of a forward pass (in training with the backward pass) in each way."""
    shape = _input_shape(node)
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    work = kept * math.prod(facts(node).shape) // facts(node).shape[1]
    seconds = {SPARSE: 0.0, WINOGRAD: math.inf, DENSE: math.inf}
    # A layer in groups has few weights however dense it is, and conversions can cost more than it
    # saves: it is always timed. Of others, dense has never won with 2% of the weights or fewer.
    if layer.groups == 1 and (kept * 50 < total or work < LITTLE):
        return seconds

    def work_of(way: str) -> Callable[[], object]:
        x = torch.randn(shape) if way == DENSE else to_blocks(torch.randn(shape))
        x.requires_grad_(not first)
        forward = layer.in_dense if way == DENSE else partial(layer.on_blocks, batch=shape[0])
        return round_of(partial(run_as, layer, way, forward, x), layer, x, training)

    where = f"dilation={layer.dilation} groups={layer.groups} first={first} {setting(training)}"
    for way in layer.ways():
        key = f"{way} {list(shape)} {layer.extra_repr()} {where}"
        seconds[way] = timings.get(key, partial(work_of, way), best)
    return seconds


def _input_shape(node: fx.Node) -> tuple[int, ...]:
    source: Any = node.args[0]
    return facts(source).shape


def _dense_plain_wins(layer: PackedModule, node: fx.Node, **settings: Any) -> bool:
    """Whether a layer that takes and gives plain tensors is faster in torch."""
    source: Any = node.args[0]
    shape = facts(source).shape
    if not shape:  # packed sequences
        return False

    def forward(x: torch.Tensor) -> torch.Tensor:
        made = layer(x)
        return made[0] if isinstance(made, tuple) else made

    return dense_wins(layer, {SPARSE: forward, DENSE: forward}, shape, **settings)


def _conversion_time(shape: tuple[int, ...], timings: Timings) -> float:
    """Seconds to convert plain to blocks and blocks to plain: one is forward, one backward."""

    def make() -> Callable[[], object]:
        x = torch.randn(shape)
        blocks = to_blocks(x)

        def work() -> None:
            to_blocks(x)
            from_blocks(blocks, shape[0])

        return work

    return timings.get(f"convert {list(shape)} {machine()}", make, best)
