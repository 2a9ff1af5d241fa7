"""Run a model once on a batch and note which units flow where."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from snip.anatomy.calling import arguments
from snip.anatomy.hooks import hooked
from snip.anatomy.parameters import parameter_owners
from snip.common.errors import InputError
from snip.export.shrink.flow import Flow
from snip.export.shrink.network import Network
from snip.export.shrink.step import Flows, Step, opaque
from snip.export.shrink.table import rule_of


@dataclass(frozen=True)
class Traced:
    """The graph of a model's forward for the arguments of one call."""

    graph: fx.Graph
    values: tuple[Any, ...]  # one per placeholder


def trace(model: nn.Module, inputs: Any) -> Traced:
    """The model's operations, in its present mode; refuses what torch.fx cannot follow."""
    args, kwargs = arguments(model, inputs)
    try:
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
        given = set(bound.arguments)
        bound.apply_defaults()
        # What was not given, or is no tensor, is part of the graph: `if mask is None` and the like.
        fixed = {
            name: value
            for name, value in bound.arguments.items()
            if name not in given or not isinstance(value, (torch.Tensor, tuple, list, dict))
        }
        graph = fx.Tracer().trace(model, concrete_args=fixed or None)
    except Exception as error:  # a user's forward may do anything at all
        first_line = (str(error).strip() or "no message").splitlines()[0]
        raise InputError(
            f"{type(model).__name__} cannot be shrunk: torch.fx cannot follow its forward "
            f"({type(error).__name__}: {first_line}). Take decisions that depend on data out of "
            "the forward, or shrink the part of the model without them."
        ) from error
    return Traced(graph, tuple(bound.arguments.values()))


def follow(model: nn.Module, traced: Traced, held: Mapping[str, Any], *, strict: bool) -> Network:
    """What a run of the traced model tells about its units."""
    network = Network(held, strict)
    follower = _Follower(model, traced.graph, network)
    with torch.no_grad():
        follower.run(*copied(traced.values))
    return network


def copied(value: Any) -> Any:
    """A structure with its tensors cloned: a forward may write into its input."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(copied(part) for part in value)
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    return value


class _Follower(fx.Interpreter):
    """Runs the graph, and after each operation its rule."""

    def __init__(self, model: nn.Module, graph: fx.Graph, network: Network) -> None:
        super().__init__(model, graph=graph)
        self.extra_traceback = False  # an error is told as it is
        self.network = network
        self.flows: dict[fx.Node, Flows] = {}
        self.shared = set(_shared_modules(model, graph))

    def run_node(self, n: fx.Node) -> Any:
        versions = {node: _version(self.env.get(node)) for node in n.all_input_nodes}
        try:
            out = super().run_node(n)
        except Exception as error:
            first_line = (str(error).strip() or "no message").splitlines()[0]
            raise InputError(f"the model does not run on this batch: {first_line}") from error
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        step = Step(n, module, self.env, self.flows, out, self.network)
        self.flows[n] = self._flows(step)
        for node, version in versions.items():
            if version != _version(self.env.get(node)):
                self._forget_aliases(self.env[node])
        return out

    def _flows(self, step: Step) -> Flows:
        node, module = step.node, step.module
        if module is not None:
            ordinary = node.target not in self.shared and not hooked(module)
            return rule_of(node, module)(step) if ordinary else opaque(step)
        try:
            found = rule_of(node, None)(step)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            # Arguments written in a way that the rule does not know.
            return opaque(step)
        fits = not isinstance(found, Flow) or step.out.shape[found.axis] == len(found.units)
        return found if fits else opaque(step)

    def _forget_aliases(self, written: torch.Tensor) -> None:
        """After a write in place, other names of that memory hold other values than noted."""
        for node, value in self.env.items():
            self.flows[node] = _forgotten(self.flows.get(node), value, written)


def _forgotten(flows: Flows, value: Any, written: torch.Tensor) -> Flows:
    if isinstance(flows, tuple):
        pairs = zip(flows, value, strict=True)
        return tuple(_forgotten(flow, part, written) for flow, part in pairs)
    if isinstance(flows, Flow) and _alias(value, written):
        return flows.unknown()
    return flows


def _version(value: Any) -> int | None:
    return value._version if isinstance(value, torch.Tensor) else None


def _alias(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _shared_modules(model: nn.Module, graph: fx.Graph) -> Iterator[str]:
    """Modules that are used twice, or whose parameters someone else uses: never cut."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for name, count in calls.items():
        if count > 1 and model.get_submodule(str(name)).state_dict():
            yield str(name)
    for node in graph.nodes:
        if node.op == "get_attr":
            yield str(node.target).rpartition(".")[0]
    for pairs in parameter_owners(model).values():
        if len(pairs) > 1:
            yield from (name.rpartition(".")[0] for name, _ in pairs)
