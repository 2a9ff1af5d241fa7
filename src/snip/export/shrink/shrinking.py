"""Exact shrinking: follow, decide, fold, cut, and compare with the model before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.distributed.models import require_unwrapped
from snip.distributed.wrappers import unwrap
from snip.export.shrink.needs import Needs, contributions, needed_units
from snip.export.shrink.report import ShrinkReport, layer_changes
from snip.masks import Masks, held_masks, holding
from snip.network.calls import call, copied, copy_of, tensors_in
from snip.network.graph import Graph, UntraceableError, trace
from snip.network.parameters import ordinary
from snip.network.untouched import undisturbed
from snip.units.follow import follow
from snip.units.ledger import Ledger
from snip.units.surgery import Cut, Plan, cut, cut_tensors

SHRUNK = "_snip_shrunk"  # on the root Module: its Shrunk


@dataclass(frozen=True)
class Shrunk:
    """What a shrunk model remembers: which units of the original it has, and the report."""

    plan: Plan
    report: ShrinkReport | None


def shrink(model: nn.Module, batch: Any, *, fold: bool = True) -> nn.Module:
    """A smaller copy of `model` with the same outputs, without units that do nothing.

    Removed are units that nobody reads, and units that no input reaches; what the latter
    contribute is folded into the next bias. Of `batch` only the shapes matter. In eval mode
    outputs stay equal. `fold=False` removes only what contributes nothing now and later, so
    that training goes on exactly as before, too. `shrink_report` tells what was done.
    """
    require_unwrapped(model, "snip.shrink")
    model = ordinary(model)
    masks = held_masks(model)
    if masks is not None:
        masks.check(model)
    small = copy_of(model)
    with undisturbed(model), torch.inference_mode(False):
        traced = _traced(model.eval(), batch)
        ledger = follow(model, traced, masks or {}, strict=not fold)
        needs = needed_units(ledger, fold=fold)
        deltas = contributions(ledger, needs)
        plan = _plan(ledger, needs, deltas)
        _operate(small, plan, deltas, masks)
        _compare(model, small, batch)
        same_graph = _same_in_train_mode(model, traced, batch)
    notes = tuple(_differences(ledger, needs, same_graph=same_graph))
    report = ShrinkReport(
        layer_changes(ledger, needs),
        parameters=(_count(model), _count(small)),
        folded=sum(int((delta != 0).sum()) for delta in deltas.values()),
        notes=notes,
    )
    small.__dict__[SHRUNK] = Shrunk(_since_the_original(model, plan), report)
    return small


def shrunk(model: nn.Module) -> Shrunk | None:
    """What `model` remembers of being shrunk, or None."""
    found: Shrunk | None = unwrap(model).__dict__.get(SHRUNK)
    return found


def shrink_report(model: nn.Module) -> ShrinkReport:
    """What `shrink` did to make this model."""
    found = shrunk(model)
    if found is None or found.report is None:
        raise InputError("this model has no shrink report: it does not come from snip.shrink().")
    return found.report


def _traced(model: nn.Module, batch: Any) -> Graph:
    try:
        return trace(model, batch)
    except UntraceableError as error:
        raise InputError(
            f"{type(model).__name__} cannot be shrunk: torch.fx cannot follow its forward "
            f"({error}). Take decisions that depend on data out of the forward, or shrink the part "
            "of the model without them."
        ) from error


def _plan(ledger: Ledger, needs: Needs, deltas: Mapping[str, torch.Tensor]) -> Plan:
    """What stays of each layer that loses units or gets a bias."""
    cuts = {}
    for layer in ledger.layers:
        inputs = None if layer.source is None else needs.kept(layer.source.units)
        new_bias = f"{layer.name}.bias" in deltas and layer.module.bias is None
        cuts[layer.name] = Cut(inputs, needs.kept(layer.result.units), new_bias)
    return {name: found for name, found in cuts.items() if found != Cut()}


def _operate(
    small: nn.Module, plan: Plan, deltas: Mapping[str, torch.Tensor], masks: Masks | None
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
    try:
        with undisturbed(small), torch.no_grad():
            small.eval()
            after = list(tensors_in(call(small, copied(batch))))
    except Exception as error:  # a user's forward may do anything at all
        raise InputError(
            f"{type(model).__name__} cannot be shrunk: its forward does not run with smaller "
            f"layers ({error}). Does it have a size written out, where x.shape would do?"
        ) from error
    with torch.no_grad():
        before = list(tensors_in(call(model, copied(batch))))
    if len(before) != len(after) or not all(map(_close, before, after)):
        raise InputError(
            f"{type(model).__name__} cannot be shrunk: with smaller layers its outputs differ. "
            "Does its forward use weights or sizes other than by calling its layers?"
        )


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or not a.is_floating_point():
        return torch.equal(a, b)
    # Sums of fewer numbers round differently; the scale is that of the whole output.
    scale = torch.nan_to_num(a.abs()).max().clamp(min=1) if a.numel() else a.new_ones(())
    limit = torch.finfo(a.dtype).eps ** 0.5 * float(scale)
    return torch.allclose(a, b, rtol=0, atol=limit, equal_nan=True)


def _same_in_train_mode(model: nn.Module, traced: Graph, batch: Any) -> bool:
    """Whether the forward calls the same operations in train mode."""
    try:
        graphs = trace(model.train(), batch).graph, traced.graph
    except UntraceableError:
        return False
    first, second = ([(node.op, str(node.target)) for node in graph.nodes] for graph in graphs)
    return first == second


def _differences(ledger: Ledger, needs: Needs, *, same_graph: bool) -> Iterator[str]:
    """Why training would not go on as in the model before."""
    if not same_graph:
        yield "The forward does other things in train mode: use the result in eval mode."
    if needs.fold and not torch.equal(needs.needed, needed_units(ledger, fold=False).needed):
        yield (
            "Some removed units are constants, and in the model before their parameters would "
            "train on: use fold=False to train exactly alike."
        )
    if needs.fold and ledger.may_grow:
        yield (
            "Weights without a mask count as dead where they are zero, but could grow: apply "
            "masks (Masks.from_zeros) or use fold=False to train exactly alike."
        )
    if not all(bool(needs.of(units).all()) for units in ledger.drawn):
        yield "Dropout draws for fewer units: training differs by chance."


def _since_the_original(model: nn.Module, plan: Plan) -> Plan:
    """The plan by indices of the model that was shrunk first, if this one was shrunk before."""
    earlier = found.plan if (found := shrunk(model)) else {}
    nothing = Cut()
    return {n: plan.get(n, nothing).after(earlier.get(n, nothing)) for n in earlier | plan}


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
