"""Which layers run dense and which sparse: by timing, on the user's machine, remembered.

A layer that is hardly sparse is faster in torch's own convolution, but that wants plain tensors:
each change of layout on the way costs a pass over memory. The cheapest assignment of all layers
together is a minimum cut between "blocked" and "plain".
"""

from __future__ import annotations

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
BLOCKED, PLAIN = "blocked", "plain"


def faster_dense(traced: fx.GraphModule, root: nn.Module, timings: Timings) -> set[str]:
    """Names of the layers that run dense; convolutions among them take plain activations."""
    nodes = [n for n in traced.graph.nodes if n.op == "call_module" and "shape" in n.meta]
    layers = [(n, root.get_submodule(str(n.target))) for n in nodes]
    chosen, graph = set(), nx.DiGraph()
    convolutions = {}
    for node, layer in track(layers, description="timing layers", total=len(layers)):
        if isinstance(layer, SparseLinear):
            if _dense_linear_wins(layer, node, timings):
                chosen.add(str(node.target))
        elif isinstance(layer, SparseConv2d):
            convolutions[node] = str(node.target)
            sparse, dense = _conv_times(layer, node, timings)
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


def _conv_times(layer: SparseConv2d, node: fx.Node, timings: Timings) -> tuple[float, float]:
    """Seconds of forward and backward, sparse and dense."""
    source: Any = node.args[0]
    shape = source.meta["shape"]
    first = source.op == "placeholder"  # nobody asks for the gradient of the input
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    key = f"{list(shape)} {layer.extra_repr()} groups={layer.groups} first={first} {_machine()}"
    if kept * 50 < total and kept:
        return 0.0, float("inf")  # below 2% dense has never won; not worth the user's time

    def sparse() -> Callable[[], None]:
        x = to_blocked(torch.randn(shape)).requires_grad_(not first)
        return _round(lambda: layer.on_blocked(x, shape[0]), layer)

    def dense() -> Callable[[], None]:
        x = torch.randn(shape).requires_grad_(not first)
        return _round(lambda: layer.in_dense(x), layer)

    return timings.get(f"sparse {key}", sparse, _best), timings.get(f"dense {key}", dense, _best)


def _dense_linear_wins(layer: SparseLinear, node: fx.Node, timings: Timings) -> bool:
    source: Any = node.args[0]
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    if len(source.meta["shape"]) != 2 or kept * 20 < total or kept < FEW:
        return False
    batch = source.meta["shape"][0]
    key = f"{batch} {layer.extra_repr()} {_machine()}"

    def work(dense: bool) -> Callable[[], Callable[[], None]]:
        def make() -> Callable[[], None]:
            x = torch.randn(layer.in_features, batch, requires_grad=True)
            way = layer.as_matrix if dense else layer.on_lines
            return _round(lambda: way(x), layer)

        return make

    return timings.get(f"dense {key}", work(True), _best) < timings.get(
        f"sparse {key}", work(False), _best
    )


def _conversion_time(shape: tuple[int, ...], timings: Timings) -> float:
    """Seconds to go from plain to blocked, and back with the gradient."""

    def make() -> Callable[[], None]:
        x = torch.randn(shape)
        blocked = to_blocked(x)

        def work() -> None:
            to_blocked(x)
            from_blocked(blocked, shape[0])

        return work

    return timings.get(f"convert {list(shape)} {_machine()}", make, _best)


def _round(forward: Callable[[], torch.Tensor], layer: nn.Module) -> Callable[[], None]:
    """One forward and backward pass that leaves no gradient behind."""
    weights = [p for p in layer.parameters() if p.requires_grad]
    seed = torch.ones_like(forward())

    def work() -> None:
        torch.autograd.grad(forward(), weights, seed)

    return work


def _best(work: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _machine() -> str:
    return f"{instruction_set()} {torch.get_num_threads()} threads"
