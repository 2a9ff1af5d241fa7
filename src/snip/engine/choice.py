"""Which layers run dense and which sparse: by timing, on the user's machine, remembered.

A layer that is hardly sparse is faster in torch's own convolution, but that wants plain tensors:
each change of layout on the way costs a pass over memory. The cheapest assignment of all layers
together is a minimum cut between "blocked" and "plain".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import networkx as nx  # torch itself depends on it
import torch
from torch import fx, nn

from snip.engine.kernels.library import instruction_set
from snip.engine.layers import SparseConv2d, SparseLinear
from snip.engine.layout import from_blocked, to_blocked
from snip.engine.memory import Timings
from snip.progress import track

ROUNDS = 3
FEW = 20_000  # weights: a smaller product costs less than the timing, and chains better sparse
LITTLE = 1 << 26  # multiply-adds, a millisecond: as little, and a straight network stays straight
BLOCKED, PLAIN = "blocked", "plain"


def faster_dense(
    traced: fx.GraphModule, root: nn.Module, timings: Timings, *, training: bool
) -> set[str]:
    """Names of the layers that run dense; convolutions among them take plain activations."""
    with torch.set_grad_enabled(training):
        return _faster_dense(traced, root, timings, training)


def _faster_dense(
    traced: fx.GraphModule, root: nn.Module, timings: Timings, training: bool
) -> set[str]:
    nodes = [n for n in traced.graph.nodes if n.op == "call_module" and "shape" in n.meta]
    layers = [(n, root.get_submodule(str(n.target))) for n in nodes]
    chosen, graph = set(), nx.DiGraph()
    convolutions = {}
    for node, layer in track(layers, description="timing layers", total=len(layers)):
        if isinstance(layer, SparseLinear):
            if _dense_linear_wins(layer, node, timings, training):
                chosen.add(str(node.target))
        elif isinstance(layer, SparseConv2d):
            convolutions[node] = str(node.target)
            sparse, dense = _conv_times(layer, node, timings, training)
            graph.add_edge(BLOCKED, node, capacity=dense)
            graph.add_edge(node, PLAIN, capacity=sparse)
    if not convolutions:
        return chosen
    _add_borders(graph, traced, timings)
    _, (_, plain) = nx.minimum_cut(graph, BLOCKED, PLAIN)
    return chosen | {name for node, name in convolutions.items() if node in plain}


def _add_borders(graph: nx.DiGraph, traced: fx.GraphModule, timings: Timings) -> None:
    """Between a layer and its neighbours: what a change of layout there costs, both ways."""
    for node in traced.graph.nodes:
        shape = node.meta.get("shape", ())
        if node.op == "placeholder":
            graph.add_edge(node, PLAIN)  # without a capacity: what comes in is plain
        if len(shape) != 4:
            continue  # lines and plain matrices: cheap, and on the far side of every convolution
        cost = _conversion_time(shape, timings)
        for user in node.users:
            for one, two in ((node, user), (user, node)):
                graph.add_edge(one, two, capacity=cost)


def _conv_times(
    layer: SparseConv2d, node: fx.Node, timings: Timings, training: bool
) -> tuple[float, float]:
    """Seconds of forward (and backward), sparse and dense."""
    source: Any = node.args[0]
    shape = source.meta["shape"]
    first = source.op == "placeholder"  # nobody asks for the gradient of the input
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    where = f"groups={layer.groups} first={first} {_setting(training)}"
    key = f"{list(shape)} {layer.extra_repr()} {where}"
    work = kept * math.prod(node.meta["shape"]) // node.meta["shape"][1]
    if (kept * 50 < total and kept) or work < LITTLE:
        return 0.0, float("inf")  # below 2% dense has never won; not worth the user's time

    def sparse() -> Callable[[], object]:
        x = to_blocked(torch.randn(shape)).requires_grad_(not first)
        return _round(lambda: layer.on_blocked(x, shape[0]), layer, training)

    def dense() -> Callable[[], object]:
        x = torch.randn(shape).requires_grad_(not first)
        return _round(lambda: layer.in_dense(x), layer, training)

    return timings.get(f"sparse {key}", sparse, _best), timings.get(f"dense {key}", dense, _best)


def _dense_linear_wins(
    layer: SparseLinear, node: fx.Node, timings: Timings, training: bool
) -> bool:
    source: Any = node.args[0]
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    if len(source.meta["shape"]) != 2 or kept * 20 < total or kept < FEW:
        return False
    batch = source.meta["shape"][0]
    key = f"{batch} {layer.extra_repr()} {_setting(training)}"

    def work(dense: bool) -> Callable[[], Callable[[], object]]:
        def make() -> Callable[[], object]:
            x = torch.randn(layer.in_features, batch, requires_grad=True)
            way = layer.as_matrix if dense else layer.on_lines
            return _round(lambda: way(x), layer, training)

        return make

    return timings.get(f"dense {key}", work(True), _best) < timings.get(
        f"sparse {key}", work(False), _best
    )


def _conversion_time(shape: tuple[int, ...], timings: Timings) -> float:
    """Seconds to go from plain to blocked, and back with the gradient."""

    def make() -> Callable[[], object]:
        x = torch.randn(shape)
        blocked = to_blocked(x)

        def work() -> None:
            to_blocked(x)
            from_blocked(blocked, shape[0])

        return work

    return timings.get(f"convert {list(shape)} {_machine()}", make, _best)


def _round(
    forward: Callable[[], torch.Tensor], layer: nn.Module, training: bool
) -> Callable[[], object]:
    """One forward pass, in training with a backward pass that leaves no gradient behind."""
    if not training:
        return forward
    weights = [p for p in layer.parameters() if p.requires_grad]
    seed = torch.ones_like(forward())

    def work() -> None:
        torch.autograd.grad(forward(), weights, seed)

    return work


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _setting(training: bool) -> str:
    return f"{'training' if training else 'inference'} {_machine()}"


def _machine() -> str:
    return f"{instruction_set()} {torch.get_num_threads()} threads"
