"""The one way to trace a network's forward with torch.fx, for the arguments of one call."""

from __future__ import annotations

import inspect
import os
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.utils import _pytree as pytree

from snip.common.text import first_line
from snip.network.calls import arguments, copied, doubled
from snip.network.operations import UNKNOWN, Kind, given, operation, writes_in_place
from snip.network.untouched import restored_modes, undisturbed
from snip.tracing.tracer import CarefulTracer, Leaf

TENSOR_ATTRIBUTES = ("T", "H", "mT", "mH", "data", "real", "imag")
UNQUOTED = '"\\\n\r'
TORCH = os.path.dirname(torch.__file__)


class UntraceableError(Exception):
    """Why a forward cannot be traced, or why its graph would not do what the network does."""


@dataclass(frozen=True)
class Traced:
    """The graph of a model's forward, in one mode and for the arguments of one call."""

    graph: fx.Graph
    values: tuple[Any, ...]  # one per placeholder
    constants: dict[str, torch.Tensor]  # tensors that the forward made, by the names in the graph
    switches: bool  # whether a mode (gradients, inference, autocast) changes in the forward
    writes: tuple[str, ...]  # attributes and buffers that the forward wrote while it was traced


def trace(
    model: nn.Module, inputs: Any, *, buffers: bool = False, leaf: Leaf = lambda module: False
) -> Traced:
    """The model's operations in its present mode, as called on `inputs`.

    With `buffers`, operations on the model's buffers are part of the graph; otherwise their
    results are constants. `leaf` tells which modules, beside torch's own, are one node. The model
    and the random state are left exactly as they were.
    """
    args, kwargs = arguments(model, inputs)
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise UntraceableError(f"TypeError: {first_line(error)}") from error
    with undisturbed(model) as before:
        try:
            tracer = CarefulTracer(bound, buffers=buffers, leaf=leaf)
            graph = tracer.trace(model)
        except Exception as error:  # what a user's forward may raise has no common kind
            raise UntraceableError(_why(error)) from error
        if before.has_drawn():
            raise UntraceableError("its forward draws random numbers that a graph would repeat")
        writes = tuple(before.changes())
    for node in graph.nodes:
        if node.op == "call_module" and not node.args and "input" in node.kwargs:
            node.args, node.kwargs = (node.kwargs["input"],), {}
    return Traced(graph, tuple(tracer.values), tracer.constants, tracer.switches, writes)


def _refuse_names(graph: fx.Graph) -> None:
    """Refuse names that would end the text between quotation marks in which fx writes them."""
    for node in graph.nodes:
        name = str(node.target)
        if node.op in ("call_module", "get_attr") and not set(name).isdisjoint(UNQUOTED):
            raise UntraceableError(f"the name {name!r} cannot stand in generated code: rename it")


def trace_for_training(
    model: nn.Module, inputs: Any, *, leaf: Leaf = lambda module: False
) -> Traced:
    """The model's operations, if the graph alone does what the model does in both modes.

    Every node then knows the shape of its result on `inputs`, `node.meta["shape"]`, and on a batch
    of twice that size, `node.meta["doubled"]`. The latter is missing where the model does not run
    on such a batch.
    """
    with restored_modes(model):
        training = trace(model.train(), inputs, buffers=True, leaf=leaf)
        traced = trace(model.eval(), inputs, buffers=True, leaf=leaf)
    _refuse_side_effects(training)
    _refuse_side_effects(traced)
    if str(training.graph) != str(traced.graph) or not _same_constants(training, traced):
        raise UntraceableError("its forward does something else in training than in evaluation")
    _refuse_names(traced.graph)
    _refuse_overwriting(traced.graph, model)
    with undisturbed(model), torch.no_grad():
        Run(model.eval(), traced).run(*copied(traced.values))
        with suppress(Exception):  # a forward may insist on its batch size in any way
            twice = pytree.tree_map_only(torch.Tensor, doubled, traced.values)
            Run(model, traced, "doubled").run(*twice)
    return traced


class Run(fx.Interpreter):
    """Runs a traced forward once, and notes the shape of every tensor on its node."""

    def __init__(self, model: nn.Module, traced: Traced, note: str = "shape") -> None:
        super().__init__(model, graph=traced.graph)
        self.extra_traceback = False  # an error is told as it is
        self.constants, self.note = traced.constants, note

    def run_node(self, n: fx.Node) -> Any:
        """Run one node as usual."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta[self.note] = tuple(result.shape)
        return result

    def fetch_attr(self, target: str) -> Any:
        """An attribute of the model, or a constant of the graph."""
        return self.constants[target] if target in self.constants else super().fetch_attr(target)


def _why(error: Exception) -> str:
    """Why a forward could not be followed, with the line of it that was the last to run.

    Errors of these kinds come where a stand-in is asked for what only a real input has, and they
    speak of the stand-in.
    """
    if not isinstance(error, (TypeError, RuntimeError, TraceError)):
        return f"{type(error).__name__}: {first_line(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.name == "forward" and not f.filename.startswith(TORCH)]
    line = f", at {own[-1].line!r}" if own and own[-1].line else ""
    return f"its forward depends on values or sizes of its input{line}"


def called(node: fx.Node, model: nn.Module) -> nn.Module | None:
    """The layer that a node calls, if it calls one."""
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _refuse_side_effects(traced: Traced) -> None:
    """Refuse what a forward does beside its operations: the graph would not do it."""
    if traced.switches:
        raise UntraceableError(
            "its forward switches gradients, inference mode or autocast on or off"
        )
    if traced.writes:
        raise UntraceableError(f"its forward writes {traced.writes[0]}")
    if any(constant.requires_grad for constant in traced.constants.values()):
        raise UntraceableError("its forward makes a tensor that requires gradients")


def _same_constants(one: Traced, two: Traced) -> bool:
    """Whether two graphs have equal constants under each name."""
    pairs = zip(one.constants.values(), two.constants.values(), strict=False)
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    return same and one.constants.keys() == two.constants.keys()


def _refuse_overwriting(graph: fx.Graph, model: nn.Module) -> None:
    """Refuse a graph in which an operation overwrites a tensor that is read again later."""
    memory = _memory(graph, model)
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.kwargs.get("out") is not None:
            raise UntraceableError(f"{node} writes into the tensor given as `out`")
        if not writes_in_place(node, called(node, model)):
            continue
        for tensor in memory[node]:
            if tensor.op == "get_attr":
                raise UntraceableError(f"its forward writes {tensor.target}")
            read_again = any(place[user] > place[node] for user in tensor.users)
            if place[tensor] < place[node] and read_again:
                raise UntraceableError(f"{node} overwrites {tensor}, which is read again")


def _memory(graph: fx.Graph, model: nn.Module) -> dict[fx.Node, list[fx.Node]]:
    """For each node all nodes, itself included, whose results may share one memory with its own."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        found[node] = [node]
        for source in _sources(node, model):
            if found[source] is not found[node]:
                joined = found[source] + found[node]
                found.update(dict.fromkeys(joined, joined))
    return found


def _sources(node: fx.Node, model: nn.Module) -> list[fx.Node]:
    """The arguments with which a result may share memory: all, of an operation nobody knows."""
    module = called(node, model)
    if not node.op.startswith("call_"):
        return []
    known = operation(node, module)
    if known is UNKNOWN:
        return node.all_input_nodes
    first = given(node, 0, "input")
    shares = known.is_view or writes_in_place(node, module)
    if known.kind is Kind.ATTRIBUTE:  # of x.shape and x.dtype nothing can be overwritten
        shares = given(node, 1, "name") in TENSOR_ATTRIBUTES
    return [first] if shares and isinstance(first, fx.Node) else []
