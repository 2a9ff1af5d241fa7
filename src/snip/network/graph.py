"""A network's forward as a torch.fx graph, and the facts of each of its nodes."""

from __future__ import annotations

import inspect
import operator
import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError
from torch.utils import _pytree as pytree

from snip.common.errors import first_line
from snip.network.calls import arguments, copied, doubled, tensors_in
from snip.network.operations import Operation, operation
from snip.network.untouched import restored_modes, undisturbed

Leaf = Callable[[nn.Module], bool]
UNQUOTED = '"\\\n\r'  # they would end the text between quotation marks in which fx writes names
TORCH = os.path.dirname(torch.__file__)


class UntraceableError(Exception):
    """Why a forward cannot be traced, or why its graph would not do what the network does."""


@dataclass(frozen=True)
class NodeFacts:
    """Facts of a node: the first two from tracing, the others from a run of the graph."""

    operation: Operation
    module: nn.Module | None  # that the node calls
    shape: tuple[int, ...] = ()  # of its result; empty if that is no tensor
    doubled: tuple[int, ...] | None = None  # with twice the batch; None if the model refuses that
    dtype: torch.dtype | None = None
    writes: bool = False  # overwrites its first argument


@dataclass(frozen=True)
class Graph:
    """The forward of a model, for the arguments of one call."""

    graph: fx.Graph
    values: tuple[Any, ...]  # one per placeholder
    constants: dict[str, torch.Tensor]  # tensors that the forward made, by the names in the graph


def facts(node: fx.Node) -> NodeFacts:
    """Facts that were noted on a node."""
    noted: NodeFacts = node.meta["facts"]
    return noted


def trace(
    model: nn.Module, inputs: Any, *, both_modes: bool = False, leaf: Leaf = lambda module: False
) -> Graph:
    """Trace the forward as called on `inputs`; the model and the random state are left as found.

    The graph is that of the model's present mode, and results computed from buffers are constants
    in it. With `both_modes`, the graph alone must do what the model does in train and eval mode, it
    follows the buffers, and its nodes know their shapes. Torch's own modules and those for which
    `leaf` is true are one node each.
    """
    if not both_modes:
        return _symbolic(model, inputs, leaf, buffers=False)[0]
    with restored_modes(model):
        modes = [_symbolic(model.train(m), inputs, leaf, buffers=True) for m in (True, False)]
    for _, side_effect in modes:
        if side_effect is not None:
            raise UntraceableError(side_effect)
    (training, _), (traced, _) = modes
    if str(training.graph) != str(traced.graph) or not _same_constants(training, traced):
        raise UntraceableError("its forward does something else in training than in evaluation")
    for node in traced.graph.nodes:
        name = str(node.target)
        if node.op in ("call_module", "get_attr") and not set(name).isdisjoint(UNQUOTED):
            raise UntraceableError(f"the name {name!r} cannot stand in generated code: rename it")
    _note_shapes(model, traced)
    return traced


def _symbolic(
    model: nn.Module, inputs: Any, leaf: Leaf, *, buffers: bool
) -> tuple[Graph, str | None]:
    """Trace the present mode; also say what the forward does that the graph would not do."""
    args, kwargs = arguments(model, inputs)
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise UntraceableError(f"TypeError: {first_line(error)}") from error
    with undisturbed(model) as before:
        try:
            tracer = _Tracer(bound, buffers=buffers, leaf=leaf)
            graph = tracer.trace(model)
        except Exception as error:  # a user's forward may raise anything
            raise UntraceableError(_reason(error)) from error
        if before.has_drawn():
            raise UntraceableError("its forward draws random numbers that a graph would repeat")
        writes = before.changes()
    for node in graph.nodes:
        if node.op == "call_module" and not node.args and "input" in node.kwargs:
            node.args, node.kwargs = (node.kwargs["input"],), {}
        module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        node.meta["facts"] = NodeFacts(operation(node, module), module)
    side_effect = None
    if tracer.switches:
        side_effect = "its forward switches gradients, inference mode or autocast on or off"
    elif writes:
        side_effect = f"its forward writes {writes[0]}"
    elif any(constant.requires_grad for constant in tracer.constants.values()):
        side_effect = "its forward makes a tensor that requires gradients"
    return Graph(graph, tuple(tracer.values), tracer.constants), side_effect


def _reason(error: Exception) -> str:
    """Why a forward could not be traced, with the last of its lines that ran.

    Errors of these kinds come where a stand-in is asked for what only a real input has, and they
    speak of the stand-in.
    """
    if not isinstance(error, (TypeError, RuntimeError, TraceError)):
        return f"{type(error).__name__}: {first_line(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.name == "forward" and not f.filename.startswith(TORCH)]
    line = f", at {own[-1].line!r}" if own and own[-1].line else ""
    return f"its forward depends on values or sizes of its input{line}"


def _same_constants(one: Graph, two: Graph) -> bool:
    pairs = zip(one.constants.values(), two.constants.values(), strict=False)
    same = all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    return same and one.constants.keys() == two.constants.keys()


def _note_shapes(model: nn.Module, traced: Graph) -> None:
    """Run the graph on its values and on twice their batch."""
    with undisturbed(model), torch.inference_mode(False), torch.no_grad():
        model.eval()
        for module in model.modules():  # a dropout in place writes in train mode only
            module.training = bool(getattr(module, "inplace", False))
        _CheckedRun(model, traced).run(*copied(traced.values))
        with suppress(Exception):  # a forward may insist on its batch size in any way
            twice = pytree.tree_map_only(torch.Tensor, doubled, traced.values)
            _DoubledRun(model, traced).run(*copied(twice))


class Run(fx.Interpreter):
    """Runs a traced forward and notes the facts of each result on its node."""

    def __init__(self, model: nn.Module, traced: Graph) -> None:
        super().__init__(model, graph=traced.graph)
        self.extra_traceback = False  # an error is told as it is
        self.constants = traced.constants
        self.written: list[fx.Node] = []  # earlier nodes whose results the last node overwrote

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; views share the version counter of the tensor that they look at."""
        before = {node: _versions(value) for node, value in self.env.items()}
        result = super().run_node(n)
        self.written = [node for node, old in before.items() if _versions(self.env[node]) != old]
        self.note(n, result)
        return result

    def note(self, node: fx.Node, result: Any) -> None:
        """Note what the result shows."""
        known = replace(facts(node), writes=bool(node.args) and node.args[0] in self.written)
        if isinstance(result, torch.Tensor):
            known = replace(known, shape=tuple(result.shape), dtype=result.dtype)
        node.meta["facts"] = known

    def fetch_attr(self, target: str) -> Any:
        """Return an attribute of the model, or a constant of the graph."""
        return self.constants[target] if target in self.constants else super().fetch_attr(target)


class _DoubledRun(Run):
    """Notes the shapes of a batch of twice the size."""

    def note(self, node: fx.Node, result: Any) -> None:
        if isinstance(result, torch.Tensor):
            node.meta["facts"] = replace(facts(node), doubled=tuple(result.shape))


class _CheckedRun(Run):
    """Refuses a graph that overwrites an attribute, or a tensor that is read again later."""

    def __init__(self, model: nn.Module, traced: Graph) -> None:
        super().__init__(model, traced)
        self.attributes: dict[str, torch.Tensor] = {}  # copies, which a node may write into
        self.place = {node: i for i, node in enumerate(traced.graph.nodes)}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        for name, copy in self.attributes.items():
            if copy._version or (n.op == "output" and not torch.equal(copy, self._original(name))):
                raise UntraceableError(f"its forward writes {name}")
        for node in self.written:
            if any(self.place[user] > self.place[n] for user in node.users):
                raise UntraceableError(f"{n} overwrites {node}, which is read again")
        return result

    def fetch_attr(self, target: str) -> Any:
        value = self._original(target)
        if not isinstance(value, torch.Tensor):
            return value
        return self.attributes.setdefault(target, value.detach().clone())

    def _original(self, target: str) -> Any:
        return super().fetch_attr(target)


def _versions(value: Any) -> list[int]:
    """Count the writes to each tensor of a value."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_in(value)]


class _Tracer(fx.Tracer):
    """Traces one call: the tensors given become placeholders, all else is part of the graph.

    Arguments that are not tensors, or that were not given, are what they are in this call, so that
    a forward may ask `if mask is None`. Tensors that the forward makes itself are `constants` of
    the graph. With `buffers`, what the forward computes from buffers is part of the graph, so that
    it follows them when they change; otherwise it is computed once, as a constant.
    """

    def __init__(self, bound: inspect.BoundArguments, *, buffers: bool, leaf: Leaf) -> None:
        super().__init__()
        self._leaf = leaf
        self.proxy_buffer_attributes = buffers
        self.bound, self.given = bound, tuple(bound.arguments)
        self.constants: dict[str, torch.Tensor] = {}
        self.values: list[Any] = []
        self.switches = False  # a mode (gradients, inference, autocast) changes in the forward
        self._modes = _modes()
        bound.apply_defaults()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return self._leaf(m) or super().is_leaf_module(m, module_qualified_name)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Return the forward with a placeholder for each tensor of the call."""
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
        # Not a partial: torch.fx of torch 2.9 reads its __annotations__.
        return lambda: root_fn(self.root, *call.args, **call.kwargs), []

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _CarefulProxy(node, self)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Notice whether a mode has changed since the start."""
        self.switches |= _modes() != self._modes
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        """Keep a tensor that is no attribute of the model here; torch.fx would make it one."""
        if isinstance(a, torch.Tensor) and not isinstance(a, nn.Parameter):
            is_buffer = any(a is buffer for buffer in self.root.buffers())
            if not is_buffer and a not in self.tensor_attrs:
                name = f"snip_constant_{len(self.constants)}"
                self.constants[name] = a
                self.tensor_attrs[a] = name
        return super().create_arg(a)

    def _placeholder(self, name: str, value: Any) -> Any:
        if not isinstance(value, (torch.Tensor, tuple, list, dict)):
            return value
        self.values.append(value)
        return self.create_proxy("placeholder", name, (), {})


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


def _modes() -> tuple[bool, bool, bool]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled()
