"""Exact shrinking: an ordinary smaller model with the same outputs.

The model runs once to see which units flow where; needed are the units that reach an output other
than as a constant. Constants of the others are folded into the biases of the layers that read
them, the layers are cut, and the outputs are compared with those before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.distributed.wrapped import require_unwrapped, unwrap
from snip.masks import Masks, held_masks, holding
from snip.network.calls import arguments, copy_of, tensors_in
from snip.network.cuts import Cut, Plan, cut, cut_tensors, plan_as_json, plan_from_json, widths
from snip.network.graph import Graph, UntraceableError, trace
from snip.network.parameters import ordinary
from snip.network.unit_rules import follow
from snip.network.units import Layer, Ledger
from snip.network.untouched import undisturbed

Tensor = torch.Tensor

SHRUNK = "_snip_shrunk"  # on a shrunk model: its plan and report, in plain types
LAST = "the last unit of its layer"
OTHER_IN_TRAINING = "The forward does other things in train mode: use the result in eval mode."


@dataclass(frozen=True)
class LayerChange:
    """Units of one layer, before and after."""

    name: str
    kind: str
    inputs: tuple[int, int]
    units: tuple[int, int]
    kept_constants: tuple[tuple[str, int], ...]  # (reason, how many): dead, but not removable


@dataclass(frozen=True)
class ShrinkReport:
    """The changes of every layer; `str` of it is a table."""

    layers: tuple[LayerChange, ...]
    parameters: tuple[int, int]  # stored numbers, pruned ones included
    folded: int  # biases that took over constants
    notes: tuple[str, ...]

    @property
    def removed(self) -> int:
        """Units removed in all layers."""
        return sum(layer.units[0] - layer.units[1] for layer in self.layers)

    def __str__(self) -> str:
        def arrow(pair: tuple[int, int]) -> str:
            return f"{pair[0]} -> {pair[1]}" if pair[0] != pair[1] else str(pair[0])

        before, after = self.parameters
        lines = [f"{'layer':<28}{'inputs':>16}{'units':>16}"]
        for layer in self.layers:
            lines.append(f"{layer.name:<28}{arrow(layer.inputs):>16}{arrow(layer.units):>16}")
        lines.append(f"{self.removed:,} units removed; {before:,} -> {after:,} parameters")
        for layer in self.layers:
            for reason, count in layer.kept_constants:
                lines.append(f"{layer.name}: {count} constant units stay: {reason}")
        return "\n".join([*lines, *self.notes])


def shrink(model: nn.Module, batch: Any) -> nn.Module:
    """Return a smaller copy of `model` with the same outputs, without units that do nothing.

    Removed are units that nobody reads, and units that no input reaches; what the latter
    contribute is folded into the next bias. Of `batch` only the shapes matter. In eval mode
    outputs stay equal; removed constants train no more. `shrink_report` tells what was done.
    """
    require_unwrapped(model, "snip.shrink")
    model = ordinary(model)
    masks = held_masks(model)
    if masks is not None:
        masks.check(model)
    # Out of inference mode: the copy may be trained later.
    with undisturbed(model), torch.inference_mode(False):
        small = copy_of(model)
        traced = _traced(model.eval(), batch)
        ledger = follow(model, traced, masks or {}, zeros_may_grow=False)
        needs = _needed_units(ledger)
        deltas = _contributions(ledger, needs)
        plan = _plan(ledger, needs, deltas)
        _cut_and_fold(small, plan, deltas, masks)
        _compare(model, small, batch)
        alike = _same_in_train_mode(model, traced, batch)
    report = ShrinkReport(
        _layer_changes(ledger, needs),
        parameters=(_count(model), _count(small)),
        folded=sum(int((delta != 0).sum()) for delta in deltas.values()),
        notes=() if alike else (OTHER_IN_TRAINING,),
    )
    earlier = shrink_plan(model) or {}
    whole = {n: plan.get(n, Cut()).after(earlier.get(n, Cut())) for n in earlier | plan}
    note_shrunk(small, whole, report)
    return small


def shrink_report(model: nn.Module) -> ShrinkReport:
    """Return what `shrink` did to make this model."""
    noted = unwrap(model).__dict__.get(SHRUNK)
    if noted is None or noted["report"] is None:
        raise InputError("this model has no shrink report: it does not come from snip.shrink().")
    layers = tuple(LayerChange(**layer) for layer in noted["report"]["layers"])
    return ShrinkReport(**{**noted["report"], "layers": layers})


def shrink_plan(model: nn.Module) -> Plan | None:
    """Return the units that a shrunk model has of the original; None if it was not shrunk."""
    noted = unwrap(model).__dict__.get(SHRUNK)
    return None if noted is None else plan_from_json(noted["plan"])


def note_shrunk(model: nn.Module, plan: Plan, report: ShrinkReport | None = None) -> None:
    """Note on a model which units of the original it has, and what shrinking did."""
    told = None if report is None else asdict(report)
    model.__dict__[SHRUNK] = {"plan": plan_as_json(plan), "report": told}


def _traced(model: nn.Module, batch: Any) -> Graph:
    try:
        return trace(model, batch)
    except UntraceableError as error:
        raise InputError(
            f"{type(model).__name__} cannot be shrunk: torch.fx cannot follow its forward "
            f"({error}). Take decisions that depend on data out of the forward, or shrink the part "
            "of the model without them."
        ) from error


# ---- which units are needed, and what the others leave behind ----


@dataclass(frozen=True, eq=False)
class _Needs:
    """Units that must stay, by their final identity."""

    roots: Tensor  # unit -> identity
    needed: Tensor  # identity -> bool
    pinned: dict[int, str]  # identity -> why it stays in any case

    def of(self, units: Tensor) -> Tensor:
        """True where a unit stays."""
        return self.needed[self.roots[units]]

    def kept(self, units: Tensor) -> tuple[int, ...] | None:
        """Indices of the units that stay; None if all do."""
        stays = self.of(units)
        return None if bool(stays.all()) else tuple(torch.nonzero(stays).flatten().tolist())


def _needed_units(ledger: Ledger) -> _Needs:
    """Find the fewest units that must stay."""
    roots = ledger.roots()
    pinned: dict[int, str] = {}
    for unit, reason in ledger.pinned.items():
        pinned.setdefault(int(roots[unit]), reason)
    while True:
        needs = _Needs(roots, _read_by(ledger, roots, list(pinned)), pinned)
        made = [layer.result for layer in ledger.layers if layer.makes_units]
        empty = [result for result in made if not needs.of(result.units).any()]
        if not empty:
            return needs
        # PyTorch has no layers without units: one stays, best a constant, which needs no others.
        result = empty[-1]
        pinned[int(roots[result.units[int(result.constant.int().argmax())]])] = LAST


def _read_by(ledger: Ledger, roots: Tensor, pinned: list[int]) -> Tensor:
    """True for the pinned units and all that they read, directly or through others."""
    needed = torch.zeros(len(roots), dtype=torch.bool)
    needed[pinned] = True
    before = -1
    while before != (before := int(needed.sum())):
        for reader in reversed(ledger.readers):
            read = reader.live[needed[roots[reader.rows]]].any(0)
            needed[roots[reader.source.units][read & ~reader.foldable]] = True
    return needed


def _contributions(ledger: Ledger, needs: _Needs) -> dict[str, Tensor]:
    """Name of a bias -> what removed units add to each of its entries, where that is not zero."""
    deltas = {}
    for reader in ledger.readers:
        source = reader.source
        gone = source.even & ~needs.of(source.units)
        # A uniform input is multiplied by the sum over a kernel's positions.
        columns = torch.nonzero(gone).flatten().to(reader.weight.device)
        matrix = reader.weight[:, columns].cpu().double().sum(2)
        delta = (matrix @ source.value[gone]) * needs.of(reader.rows)
        if delta.any():
            deltas[f"{reader.name}.{reader.bias}"] = delta
    return deltas


def _plan(ledger: Ledger, needs: _Needs, deltas: Mapping[str, Tensor]) -> Plan:
    """Cut each layer that loses units or gets a bias."""
    cuts = {}
    for layer in ledger.layers:
        inputs = None if layer.source is None else needs.kept(layer.source.units)
        new_bias = f"{layer.name}.bias" in deltas and layer.module.bias is None
        cuts[layer.name] = Cut(inputs, needs.kept(layer.result.units), new_bias)
    return {name: layer_cut for name, layer_cut in cuts.items() if layer_cut != Cut()}


# ---- the smaller model ----


def _cut_and_fold(
    small: nn.Module, plan: Plan, deltas: Mapping[str, Tensor], masks: Masks | None
) -> None:
    """Cut a copy and fold constants into it; it then holds the masks of what is left."""
    holding.release(small)
    connections = dict(masks or {})
    for name, delta in deltas.items():
        made = masks is not None and plan.get(name.removesuffix(".bias"), Cut()).new_bias
        if name in connections or made:
            # A pruned bias that takes over a constant is a connection again.
            connections[name] = (delta != 0) | connections.get(name, torch.tensor(False))
    connections, deltas = (cut_tensors(small, plan, some) for some in (connections, deltas))
    cut(small, plan)
    for name, delta in deltas.items():
        bias = small.get_parameter(name)
        bias.data.copy_(bias.detach().cpu().double() + delta)
    if masks is not None:
        order = [name for name, _ in small.named_parameters() if name in connections]
        counts = {"kept": masks.kept, "total": masks.total}
        result = Masks({name: connections[name] for name in order}, masks.provenance)
        result.with_provenance(shrunk_from=counts).apply(small)


def _compare(model: nn.Module, small: nn.Module, batch: Any) -> None:
    """Raise if the small model does not run on the batch, or computes something else."""
    made = arguments(model, batch)
    try:
        with undisturbed(small), torch.no_grad():
            after = list(tensors_in(made.run(small.eval())))
    except Exception as error:  # a user's forward may raise anything
        raise InputError(
            f"{type(model).__name__} cannot be shrunk: its forward does not run with smaller "
            f"layers ({error}). Does it have a size written out, where x.shape would do?"
        ) from error
    with torch.no_grad():
        before = list(tensors_in(made.run(model)))
    if len(before) != len(after) or not all(map(_close, before, after)):
        raise InputError(
            f"{type(model).__name__} cannot be shrunk: with smaller layers its outputs differ. "
            "Does its forward use weights or sizes other than by calling its layers?"
        )


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or not a.is_floating_point():
        return torch.equal(a, b)
    # Sums of fewer numbers round differently; the scale is that of the whole output.
    scale = torch.nan_to_num(a.abs()).max().clamp(min=1) if a.numel() else a.new_ones(())
    limit = torch.finfo(a.dtype).eps ** 0.5 * float(scale)
    return torch.allclose(a, b, rtol=0, atol=limit, equal_nan=True)


def _same_in_train_mode(model: nn.Module, traced: Graph, batch: Any) -> bool:
    """Return True if the forward calls the same operations in train mode."""
    try:
        graphs = trace(model.train(), batch).graph, traced.graph
    except UntraceableError:
        return False
    first, second = ([(node.op, str(node.target)) for node in graph.nodes] for graph in graphs)
    return first == second


# ---- the report ----


def _layer_changes(ledger: Ledger, needs: _Needs) -> tuple[LayerChange, ...]:
    """One entry per layer that makes units, in the order of the forward pass."""
    reasons = _reasons(ledger, needs)
    return tuple(_change(layer, needs, reasons) for layer in ledger.layers if layer.makes_units)


def _change(layer: Layer, needs: _Needs, reasons: dict[int, str]) -> LayerChange:
    units = layer.result.units
    stays = needs.of(units)
    roots = needs.roots[units[stays & layer.result.constant]]
    kept = Counter(reasons.get(root, "a live unit is added to it") for root in roots.tolist())
    reads = widths(layer.module)[0]
    left = reads if layer.source is None else int(needs.of(layer.source.units).sum())
    sizes = (reads, left), (len(units), int(stays.sum()))
    return LayerChange(layer.name, type(layer.module).__name__, *sizes, tuple(kept.items()))


def _reasons(ledger: Ledger, needs: _Needs) -> dict[int, str]:
    """Say why each constant stays, by its identity."""
    reasons = dict(needs.pinned)
    for reader in ledger.readers:
        source = reader.source
        read = reader.live[needs.of(reader.rows)].any(0) & source.constant & needs.of(source.units)
        for column in torch.nonzero(read & ~reader.foldable).flatten().tolist():
            root = int(needs.roots[source.units[column]])
            reasons.setdefault(root, f"read by {reader.name!r}, which {reader.refusal}")
    return reasons


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
