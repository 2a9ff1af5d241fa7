"""Run a model once on a batch and note which units flow where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn

from snip.common.errors import InputError
from snip.common.text import first_line
from snip.network.calls import copied
from snip.network.graph import Graph, Run, facts
from snip.network.operations import Kind
from snip.network.parameters import parameter_places
from snip.network.untouched import hooked
from snip.units import layers, rules
from snip.units.flow import Flow, plain
from snip.units.ledger import NOTHING, Flows, Ledger, Step

Rules = dict[Kind, Callable[[Step], Flows]]
LAYERS: Rules = {  # as modules only: the weights that a function is given are not cut
    Kind.LINEAR: layers.weighted,
    Kind.CONVOLUTION: layers.weighted,
    Kind.TRANSPOSED_CONVOLUTION: layers.weighted,
    Kind.BATCH_NORM: layers.batch_norm,
    Kind.RECURRENT: layers.recurrent,
}
_POINTWISE = (
    *(Kind.POINTWISE, Kind.CAST, Kind.SAME),
    *(Kind.RECTIFIER, Kind.DROPOUT, Kind.PRELU),
)
_POSITIONS = (
    *(Kind.MAX_POOL, Kind.AVERAGE_POOL, Kind.ADAPTIVE_AVERAGE_POOL, Kind.ADAPTIVE_MAX_POOL),
    *(Kind.PAD, Kind.UPSAMPLE),
)
_MOVES = (Kind.MEAN, Kind.EXTREME, Kind.TOTAL, Kind.FLATTEN, Kind.VIEW, Kind.MOVE)
OPERATIONS: Rules = {
    **dict.fromkeys(_POINTWISE, rules.pointwise),
    **dict.fromkeys(_POSITIONS, rules.positions),
    **dict.fromkeys((Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT, Kind.POWER), rules.joined),
    **dict.fromkeys(_MOVES, rules.moved),
    **dict.fromkeys((Kind.SIZE, Kind.ATTRIBUTE), rules.size),
    Kind.CONCATENATE: rules.concatenate,
    Kind.ITEM: rules.item,
    Kind.QUESTION: lambda step: NOTHING,
}


def follow(model: nn.Module, traced: Graph, held: Mapping[str, Any], *, strict: bool) -> Ledger:
    """What a run of the traced model tells about its units."""
    ledger = Ledger(held, strict)
    with torch.no_grad():
        _Follower(model, traced, ledger).run(*copied(traced.values))
    return ledger


class _Follower(Run):
    """Runs the graph, and after each operation its rule."""

    def __init__(self, model: nn.Module, traced: Graph, ledger: Ledger) -> None:
        super().__init__(model, traced)
        self.model, self.ledger = model, ledger
        self.flows: dict[fx.Node, Flows] = {}
        self.shared = set(_shared_modules(model, traced.graph))

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and follow its rule."""
        try:
            out = super().run_node(n)
        except Exception as error:  # a user's forward may do anything at all
            message = f"the model does not run on this batch: {first_line(error)}"
            raise InputError(message) from error
        step = Step(n, facts(n).module, facts(n).operation, self.env, self.flows, out, self.ledger)
        self.flows[n] = self._flows(step)
        for node in self.written:  # these are other values now than noted
            self.flows[node] = _forgotten(self.flows.get(node))
        return out

    def _flows(self, step: Step) -> Flows:
        """What flows on; None after everything that flowed in has been kept."""
        module = step.module
        whole = module is not None and (step.name in self.shared or hooked(module))
        found = None if whole else _by_rule(step)
        if found is None:
            step.keep_all()
        return found


def _by_rule(step: Step) -> Flows:
    table = OPERATIONS if step.module is None else OPERATIONS | LAYERS
    try:
        found = table[step.operation.kind](step)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        return None  # arguments written in a way that the rule does not know
    fits = not isinstance(found, Flow) or step.out.shape[found.axis] == len(found.units)
    return found if fits else None


def _forgotten(flows: Flows) -> Flows:
    """Units of which no constants are known."""
    if isinstance(flows, tuple):
        return tuple(map(_forgotten, flows))
    return plain(flows.axis, flows.units) if isinstance(flows, Flow) else flows


def _shared_modules(model: nn.Module, graph: fx.Graph) -> Iterator[str]:
    """Modules that are used twice, or whose parameters someone else uses: never cut."""
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for name, count in calls.items():
        if count > 1 and model.get_submodule(str(name)).state_dict():
            yield str(name)
    for node in graph.nodes:
        if node.op == "get_attr":
            yield str(node.target).rpartition(".")[0]
    for pairs in parameter_places(model).values():
        if len(pairs) > 1:
            yield from (name.rpartition(".")[0] for name, _ in pairs)
