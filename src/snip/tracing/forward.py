"""Tracing a network with torch.fx, and refusing where what is traced is not what it does."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from snip.anatomy.undisturbed import restored_modes

IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv)
VIEWS = (
    *("view", "reshape", "flatten", "transpose", "permute", "t", "squeeze", "unsqueeze", "expand"),
    *("chunk", "split", "narrow", "select", "contiguous", "detach"),
    *(torch.flatten, torch.transpose, torch.squeeze, torch.unsqueeze, operator.getitem),
)


class UntraceableError(Exception):
    """Why a graph would not do what the network does."""


class CarefulProxy(fx.Proxy):
    """Writes `a += b` down as what it is; fx makes `a = a + b` of it."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.itruediv, other)

    def _in_place(self, operation: Any, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})


class CarefulTracer(fx.Tracer):
    """Refuses what fx does not write down: changes of the gradient mode within forward."""

    def __init__(self) -> None:
        super().__init__()
        self._modes = _modes()

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Of our own kind."""
        return CarefulProxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """As usual, unless a mode has changed since the start."""
        if _modes() != self._modes:
            raise UntraceableError("its forward switches gradients or autocast on or off")
        return super().create_node(*args, **kwargs)


def trace(model: nn.Module) -> fx.GraphModule:
    """The network as a graph that holds in both modes."""
    with restored_modes(model):
        model.train()
        training = CarefulTracer().trace(model)
        model.eval()
        graph = CarefulTracer().trace(model)
    if str(training) != str(graph):
        raise UntraceableError("its forward does something else in training than in evaluation")
    for node in graph.nodes:
        if node.op == "call_module" and not node.args and "input" in node.kwargs:
            node.args, node.kwargs = (node.kwargs["input"],), {}
    _refuse_overwriting(graph, model)
    return fx.GraphModule(model, graph)


def _modes() -> tuple[bool, bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled()


def _refuse_overwriting(graph: fx.Graph, model: nn.Module) -> None:
    """An operation in place on a tensor that is read again later changes what is read."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not _in_place(node, model):
            continue
        for tensor in _same_memory(node.args[0]):
            if any(place[user] > place[node] for user in tensor.users):
                raise UntraceableError(f"{node} overwrites {tensor}, which is read again")


def _in_place(node: fx.Node, model: nn.Module) -> bool:
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    if node.kwargs.get("inplace") or node.target in IN_PLACE:
        return True
    if node.target is F.relu and True in node.args[1:]:
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_method", "call_function") and name.endswith("_") and name[-2:] != "__"


def _same_memory(node: Any) -> Iterator[fx.Node]:
    """The tensor, and those it is a view of."""
    while isinstance(node, fx.Node):
        yield node
        is_view = node.op != "call_module" and node.target in VIEWS
        node = node.args[0] if is_view and node.args else None
