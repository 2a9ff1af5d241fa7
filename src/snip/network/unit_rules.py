"""Follow units through a forward: what each kind of operation does to them.

A rule takes a step and returns what flows on: None where it does not know, and then everything
that flowed in stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.conv import _ConvTransposeNd

from snip.common.errors import InputError
from snip.common.text import first_line
from snip.network.calls import copied
from snip.network.graph import Graph, Run, facts
from snip.network.operations import Kind, given
from snip.network.parameters import parameter_places
from snip.network.units import (
    NOTHING,
    Flow,
    Flows,
    Layer,
    Ledger,
    Reader,
    Step,
    along,
    forgotten,
    plain,
    side_by_side,
    spread,
)
from snip.network.untouched import hooked

Tensor = torch.Tensor

# The gate that makes the new state: a unit for which it reads and adds nothing stays at zero.
STATE_GATE: dict[type, int] = {nn.LSTM: 2, nn.GRU: 2, nn.RNN: 0}


def follow(
    model: nn.Module, traced: Graph, masks: Mapping[str, Tensor], *, zeros_may_grow: bool
) -> Ledger:
    """Run the traced model once and note which units flow where."""
    ledger = Ledger(masks, zeros_may_grow)
    with torch.no_grad():
        _Follower(model, traced, ledger).run(*copied(traced.values))
    return ledger


class _Follower(Run):
    """Runs the graph, and after each operation its rule."""

    def __init__(self, model: nn.Module, traced: Graph, ledger: Ledger) -> None:
        super().__init__(model, traced)
        self.ledger = ledger
        self.flows: dict[fx.Node, Flows] = {}
        self.shared = set(_shared_modules(model, traced.graph))

    def run_node(self, n: fx.Node) -> Any:
        """Run one node and follow its rule."""
        try:
            out = super().run_node(n)
        except Exception as error:  # a user's forward may raise anything
            message = f"the model does not run on this batch: {first_line(error)}"
            raise InputError(message) from error
        step = Step(n, self.env, self.flows, out, self.ledger)
        whole = step.module is not None and (step.name in self.shared or hooked(step.module))
        self.flows[n] = None if whole else _by_rule(step)
        if self.flows[n] is None:
            step.keep_all()
        for node in self.written:  # it has other values now than noted
            self.flows[node] = forgotten(self.flows.get(node))
        return out


def _by_rule(step: Step) -> Flows:
    table = FUNCTIONS if step.module is None else MODULES
    try:
        flows = table[step.operation.kind](step)
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError):
        return None  # arguments written in a way that the rule does not know
    fits = not isinstance(flows, Flow) or step.out.shape[flows.axis] == len(flows.units)
    return flows if fits else None


def _shared_modules(model: nn.Module, graph: fx.Graph) -> Iterator[str]:
    """Yield modules that are used twice, or whose parameters are used elsewhere: never cut."""
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


# ---- layers, which are cut ----


def weighted(step: Step) -> Flow | None:
    """Linear layers and convolutions: a unit reads all units before it, or those of its group."""
    module, ledger = step.module, step.ledger
    transposed, groups = isinstance(module, _ConvTransposeNd), getattr(module, "groups", 1)
    axis = step.out.ndim - 1 - len(getattr(module, "kernel_size", ()))
    source = _source_along(step, axis)
    if groups > 1 and (transposed or source is None):
        return None
    live = _matrix(ledger.live(f"{step.name}.weight", module.weight), transposed).any(2)
    live = torch.block_diag(*live.chunk(groups)) if groups > 1 else live
    read = source or plain(axis, torch.zeros(live.shape[1]).long())
    # A transposed convolution makes a pattern of a constant: only zeros are the same everywhere.
    padded = transposed or _pads_with_zeros(module)
    constant = _all_read(live, read.constant)
    uniform = constant & _all_read(live, read.zero if padded else read.uniform)
    result = Flow(axis, ledger.new(len(live)), constant, uniform, along(step.out, axis))
    ledger.layers.append(Layer(step.name, module, source, result))
    if groups > 1:  # a group goes or stays as a whole
        for units in torch.cat([read.units.view(groups, -1), result.units.view(groups, -1)], 1):
            ledger.unite(units[:1].expand(len(units) - 1), units[1:])
    elif source is not None:
        weight = _matrix(module.weight.detach(), transposed)
        foldable = source.zero if padded else source.even
        refusal = "pads with zeros, so that a constant differs at the border"
        ledger.readers.append(
            Reader(step.name, "bias", weight, live, source, result.units, foldable, refusal)
        )
    return result


def recurrent(step: Step) -> Flows:
    """A single LSTM, GRU or RNN: units lie along the last dimension of outputs and states."""
    module = step.module
    stacked = module.num_layers > 1 or module.bidirectional or module.proj_size
    packed = not isinstance(step.out[0], Tensor)
    if stacked or packed or given(step.node, 1, "hx") is not None:
        return None
    source = _source_along(step, step.before.ndim - 1)
    flow = _hidden_units(step, source)
    step.ledger.layers.append(Layer(step.name, module, source, flow))
    states = step.out[1]
    if isinstance(states, tuple):
        return flow, tuple(flow.through(state, state.ndim - 1) for state in states)
    return flow, flow.through(states, states.ndim - 1)


def _hidden_units(step: Step, source: Flow | None) -> Flow:
    """Make the units: zero where the gate of the new state is empty, else taken to be alive."""
    module, ledger, hidden = step.module, step.ledger, step.module.hidden_size
    weights = {key: getattr(module, key) for key in ("weight_ih_l0", "weight_hh_l0")}
    into, again = (ledger.live(f"{step.name}.{key}", weights[key]) for key in weights)
    gate = STATE_GATE[type(module)]
    rows = slice(gate * hidden, (gate + 1) * hidden)
    read = source or plain(0, torch.zeros(module.input_size).long())
    zero = _all_read(into[rows], read.zero)
    for key in ("bias_ih_l0", "bias_hh_l0") if module.bias else ():
        zero = zero & (getattr(module, key).detach() == 0).cpu()[rows]
    # Units read one another at each step: zero stays what reads only zeros.
    while not torch.equal(zero, still := zero & _all_read(again[rows], zero)):
        zero = still
    out = step.out[0]
    flow = Flow(out.ndim - 1, ledger.new(hidden), zero, zero, along(out, out.ndim - 1))
    refusal = "has no bias that could take over a constant"
    reads = [(weights["weight_hh_l0"], again, flow, flow.zero)]
    if source is not None:
        foldable = source.even if module.bias else source.zero
        reads.append((weights["weight_ih_l0"], into, source, foldable))
    for weight, live, units, foldable in reads:
        matrix, makes = _matrix(weight.detach()), flow.units.repeat(len(into) // hidden)
        ledger.readers.append(
            Reader(step.name, "bias_ih_l0", matrix, live, units, makes, foldable, refusal)
        )
    return flow


def batch_norm(step: Step) -> Flow | None:
    """Passes each channel on by itself."""
    if step.flow.axis != 1:
        return None
    result = step.flow.through(step.out)
    step.ledger.layers.append(Layer(step.name, step.module, None, result, makes_units=False))
    return result


def _source_along(step: Step, axis: int) -> Flow | None:
    """Return what flows in along the dimension that a layer reads; keep units along another."""
    source = step.flow_of(step.input)
    if source is not None and source.axis != axis:
        step.keep_all()
        return None
    return source


def _matrix(weight: Tensor, transposed: bool = False) -> Tensor:
    """A weight, or its mask, as [units that read, units that are read, positions]."""
    weight = weight.transpose(0, 1) if transposed else weight
    return weight.flatten(2) if weight.ndim > 2 else weight.unsqueeze(2)


def _all_read(live: Tensor, flag: Tensor) -> Tensor:
    """True for each row that reads only what has the flag, or nothing."""
    return ~(live & ~flag).any(1)


def _pads_with_zeros(module: Any) -> bool:
    padding = getattr(module, "padding", "valid")  # a linear layer has none
    if padding == "valid" or module.padding_mode != "zeros":
        return False
    return any(size > 1 for size in module.kernel_size) if padding == "same" else any(padding)


# ---- operations that treat each unit by itself, or only move units about ----


def pointwise(step: Step) -> Flow | None:
    """The same function of every number."""
    flow, slopes = step.flow, getattr(step.module, "num_parameters", 1)
    if len(step.node.all_input_nodes) > 1 or slopes > 1:
        return None  # bounds or slopes that may differ between units
    # As the slope of a PReLU trains, only a zero is a lasting constant.
    constant = flow.zero if step.operation.kind is Kind.PRELU else flow.constant
    return flow.through(step.out, constant=constant)


def positions(step: Step) -> Flow | None:
    """Pooling, padding, upsampling: windows over the last dimensions, or new positions there."""
    flow, kind, before = step.flow, step.operation.kind, step.before
    count = before.ndim - 2 if kind is Kind.UPSAMPLE else step.operation.dimensions
    if kind is Kind.PAD:
        sizes = given(step.node, 1, "pad") if step.module is None else step.module.padding
        count = len(sizes) // 2 if all(isinstance(size, int) for size in sizes) else before.ndim
    if flow.axis >= before.ndim - count:
        return None
    # A picture of one number stays that number, unless zeros at the border count, or the like:
    # they would show in a picture of any size.
    after = step.again(spread(flow.value, before.shape, flow.axis)).movedim(flow.axis, -1)
    same = torch.isclose(after, flow.value, rtol=1e-9, atol=0).flatten(0, -2).all(0)
    # The other kinds can give a fixed size, and then a pattern depends on the size of the image.
    local = kind in (Kind.MAX_POOL, Kind.AVERAGE_POOL, Kind.PAD)
    constant = flow.constant if local else flow.even
    return flow.through(step.out, constant=constant, uniform=flow.uniform & same)


def joined(step: Step) -> Flow | None:
    """Two sides, number by number; either may be a number or a tensor without units."""
    sides = given(step.node, 0, "input"), given(step.node, 1, "other")
    flows = {side: flow for side in sides if (flow := step.flow_of(side)) is not None}
    # Broadcasting aligns dimensions from the last.
    ends = {step.values[side].ndim - flow.axis for side, flow in flows.items()}
    if len(ends) != 1:
        return None
    (from_end,), known = ends, next(iter(flows.values()))
    a, b = (flows.get(side) or _partner(step, side, known.units, from_end) for side in sides)
    if a is None or b is None or len(a.units) != len(b.units):
        return None
    step.ledger.unite(a.units, b.units)
    constant, uniform = a.constant & b.constant, a.uniform & b.uniform
    if step.operation.kind is Kind.PRODUCT:  # zero if one side is
        zero = a.zero | b.zero
        constant, uniform = constant | zero, uniform | zero
    return a.through(step.out, step.out.ndim - from_end, constant=constant, uniform=uniform)


def _partner(step: Step, side: Any, units: Tensor, from_end: int) -> Flow | None:
    """A number, or a tensor that is the same for all units, as if it had the units."""
    if isinstance(side, (int, float)):
        return plain(0, units, known=True, value=side)
    tensor = step.values[side]
    same_for_all_units = tensor.ndim < from_end or tensor.shape[-from_end] == 1
    return plain(0, units) if same_for_all_units else None


def moved(step: Step) -> Flow | None:
    """Find the units after a view, a transpose, a slice or a mean over positions.

    The operation itself runs on the units' numbers. It must move any choice of units alike: a size
    written out, or a unit chosen by its index, would not survive a cut.
    """
    flow, kind = step.flow, step.operation.kind
    units = torch.arange(len(flow.units) + 1)
    grown, cut, alone = (_numbered(step, some) for some in (units, units[1:], units[:1]))
    (axis,) = (dim for dim in range(grown.ndim) if grown.shape[dim] > cut.shape[dim])
    grown, cut, alone = (numbers.movedim(axis, 0) for numbers in (grown, cut, alone))
    numbers = grown.flatten(1)[:, 0]
    same = (grown.movedim(0, -1) == numbers).all()
    cuts_alike = torch.equal(grown[numbers > 0], cut) and torch.equal(grown[numbers == 0], alone)
    if not (same and cuts_alike):
        return None
    after = flow.at(numbers[numbers < len(flow.units)].long())
    constant, uniform = after.even, after.uniform
    if kind is Kind.TOTAL:  # it grows with the number of positions
        constant = after.zero
    elif kind in (Kind.FLATTEN, Kind.VIEW) and axis == flow.axis:
        constant = after.constant
        # [batch, features]: every feature has one position, and the next layer fixes their number.
        uniform = constant if step.out.ndim == 2 and axis == 1 else uniform
    return after.through(step.out, axis, constant=constant, uniform=uniform)


def _numbered(step: Step, units: Tensor) -> Tensor:
    """Run the operation on a tensor like its input that holds the numbers of `units`."""
    numbers = spread(units, step.before.shape, step.flow.axis)
    out: Tensor = step.again(numbers)
    # The sum of equal numbers is as many times as large as there are of them.
    return out * (out.numel() / numbers.numel() if step.operation.kind is Kind.TOTAL else 1)


def concatenate(step: Step) -> Flow | None:
    """Along the units; parts that cannot be cut stay whole."""
    parts, axis = given(step.node, 0, "tensors"), given(step.node, 1, "dim", 0) % step.out.ndim
    flows = [step.flow_of(part) for part in parts]
    if not any(flows) or any(flow.axis != axis for flow in flows if flow is not None):
        return None
    for i, part in enumerate(parts):
        if flows[i] is None:
            units = step.ledger.new(step.values[part].shape[axis])
            step.ledger.pin(units, f"joined by {step.name!r} with a part that cannot be cut")
            flows[i] = plain(axis, units)
    return side_by_side([flow for flow in flows if flow is not None])


def item(step: Step) -> Flows:
    """An item of a tuple, or a part of a tensor."""
    flows, index = step.flows.get(step.input), given(step.node, 1, "index")
    if isinstance(flows, tuple):
        return flows[index] if flows and isinstance(index, int) else None
    return moved(step)


def size(step: Step) -> Flows:
    """x.size(), x.size(dim), x.shape, x.dtype: nobody may compute with the number of units."""
    flow, asked = step.flow_of(step.input), given(step.node, 1, "dim")
    if flow is None or asked in ("ndim", "dtype", "device"):
        return NOTHING
    dims = [asked]
    if asked in (None, "shape"):  # the whole shape, of which each reader may take an item
        dims = [
            user.args[1] if facts(user).operation.kind is Kind.ITEM else None
            for user in step.node.users
            if user.users
        ]
    others = all(isinstance(dim, int) and dim % step.before.ndim != flow.axis for dim in dims)
    return NOTHING if others else None


Rules = dict[Kind, Callable[[Step], Flows]]
_POINTWISE = (Kind.POINTWISE, Kind.PRELU, Kind.DROPOUT, Kind.CAST, Kind.SAME)
_POSITIONS = (
    *(Kind.MAX_POOL, Kind.AVERAGE_POOL, Kind.ADAPTIVE_AVERAGE_POOL, Kind.ADAPTIVE_MAX_POOL),
    *(Kind.PAD, Kind.UPSAMPLE),
)
_MOVES = (Kind.MEAN, Kind.EXTREME, Kind.TOTAL, Kind.FLATTEN, Kind.VIEW, Kind.MOVE)
FUNCTIONS: Rules = {
    **dict.fromkeys(_POINTWISE, pointwise),
    **dict.fromkeys(_POSITIONS, positions),
    **dict.fromkeys((Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT, Kind.POWER), joined),
    **dict.fromkeys(_MOVES, moved),
    **dict.fromkeys((Kind.SIZE, Kind.ATTRIBUTE), size),
    Kind.CONCATENATE: concatenate,
    Kind.ITEM: item,
    Kind.QUESTION: lambda step: NOTHING,
}
MODULES: Rules = FUNCTIONS | {  # the weights that a function is given are not cut
    **dict.fromkeys((Kind.LINEAR, Kind.CONVOLUTION, Kind.TRANSPOSED_CONVOLUTION), weighted),
    Kind.BATCH_NORM: batch_norm,
    Kind.RECURRENT: recurrent,
}
