"""The one way to trace a network's forward with torch.fx, for the arguments of one call."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from snip.anatomy.calling import arguments
from snip.anatomy.undisturbed import restored_modes, undisturbed
from snip.common.errors import first_line
from snip.tracing.arguments import given, writes_in_place
from snip.tracing.operations import operation


class UntraceableError(Exception):
    """Why a forward cannot be traced, or why its graph would not do what the network does."""


@dataclass(frozen=True)
class Traced:
    """The graph of a model's forward, in one mode and for the arguments of one call."""

    graph: fx.Graph
    values: tuple[Any, ...]  # one per placeholder
    switches: bool  # whether the forward switches gradients or autocast on or off on its way


def trace(model: nn.Module, inputs: Any) -> Traced:
    """The model's operations in its present mode, as called on `inputs`."""
    args, kwargs = arguments(model, inputs)
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
        tracer = _CarefulTracer(bound)
        graph = tracer.trace(model)
    except Exception as error:  # what a user's forward may raise under tracing has no common kind
        raise UntraceableError(f"{type(error).__name__}: {first_line(error)}") from error
    for node in graph.nodes:
        if node.op == "call_module" and not node.args and "input" in node.kwargs:
            node.args, node.kwargs = (node.kwargs["input"],), {}
    return Traced(graph, tuple(tracer.values), tracer.switches)


def trace_for_training(model: nn.Module, inputs: Any) -> Traced:
    """The model's operations, if the graph alone does what the model does in both modes.

    Every node then knows the shape of its result on `inputs`: `node.meta["shape"]`.
    """
    with restored_modes(model):
        training = trace(model.train(), inputs)
        traced = trace(model.eval(), inputs)
    if traced.switches or training.switches:
        raise UntraceableError("its forward switches gradients or autocast on or off")
    if str(training.graph) != str(traced.graph):
        raise UntraceableError("its forward does something else in training than in evaluation")
    _refuse_overwriting(traced.graph, model)
    with undisturbed(model), torch.no_grad():
        Run(model.eval(), traced).run(*copied(traced.values))
    return traced


class Run(fx.Interpreter):
    """Runs a traced forward once, and notes the shape of every tensor on its node."""

    def __init__(self, model: nn.Module, traced: Traced) -> None:
        super().__init__(model, graph=traced.graph)
        self.extra_traceback = False  # an error is told as it is

    def run_node(self, n: fx.Node) -> Any:
        """Run one node as usual."""
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta["shape"] = tuple(result.shape)
        return result


def called(node: fx.Node, model: nn.Module) -> nn.Module | None:
    """The layer that a node calls, if it calls one."""
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def copied(value: Any) -> Any:
    """A structure with its tensors cloned: a forward may write into its input."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(copied(part) for part in value)
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    return value


class _CarefulProxy(fx.Proxy):
    """Writes `a += b` down as what it is; torch.fx makes `a = a + b` of it."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.itruediv, other)

    def _in_place(self, sign: Callable[[Any, Any], Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", sign, (self, other), {})


class _CarefulTracer(fx.Tracer):
    """Traces one call: the tensors given become placeholders, all else is part of the graph.

    Arguments that are not tensors, or that were not given, are what they are in this call, so
    that a forward may ask `if mask is None`. Switches of the gradient mode, which no graph
    contains, are noticed.
    """

    def __init__(self, bound: inspect.BoundArguments) -> None:
        super().__init__()
        self.bound, self.given = bound, tuple(bound.arguments)
        self.values: list[Any] = []
        self.switches, self._modes = False, _modes()
        bound.apply_defaults()

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """The forward with a placeholder for each tensor of the call."""
        call = self.bound
        for name in self.given:
            value, kind = call.arguments[name], call.signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                made: Any = tuple(self._placeholder(f"{name}_{i}", v) for i, v in enumerate(value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                made = {key: self._placeholder(key, v) for key, v in value.items()}
            else:
                made = self._placeholder(name, value)
            call.arguments[name] = made
        return partial(root_fn, self.root, *call.args, **call.kwargs), []

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Make proxies that notice what is written in place."""
        return _CarefulProxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Notice whether a mode has changed since the start."""
        self.switches |= _modes() != self._modes
        return super().create_node(*args, **kwargs)

    def _placeholder(self, name: str, value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, tuple, list, dict)):
            return value
        self.values.append(value)
        return self.create_proxy("placeholder", name, (), {})


def _modes() -> tuple[bool, bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled()


def _refuse_overwriting(graph: fx.Graph, model: nn.Module) -> None:
    """An operation in place on a tensor that is read again later changes what is read."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not writes_in_place(node, called(node, model)):
            continue
        for tensor in _same_memory(given(node, 0, "input"), model):
            if any(place[user] > place[node] for user in tensor.users):
                raise UntraceableError(f"{node} overwrites {tensor}, which is read again")


def _same_memory(node: Any, model: nn.Module) -> Iterator[fx.Node]:
    """The tensor, and those it is a view of."""
    while isinstance(node, fx.Node):
        yield node
        is_view = operation(node, called(node, model)).is_view
        node = given(node, 0, "input") if is_view else None
