"""Rules of operations that treat each unit by itself, or only move units about.

A rule takes a step and returns what flows on: None where it does not know, and then everything
that flowed in stays.
"""

from __future__ import annotations

from typing import Any

import torch

from snip.network.graph import facts
from snip.network.operations import Kind, given
from snip.units.flow import Flow, plain, side_by_side, spread
from snip.units.ledger import NOTHING, Flows, Step

Tensor = torch.Tensor


def pointwise(step: Step) -> Flow | None:
    """The same function of every number."""
    flow, kind = step.flow, step.operation.kind
    changes: dict[str, Any] = {}
    slopes = getattr(step.module, "num_parameters", 1)
    if len(step.node.all_input_nodes) > 1 or slopes > 1:
        return None  # bounds or slopes that may differ between units
    if kind is Kind.RECTIFIER:
        # A constant that is not positive stops the gradient (at 0 too, by PyTorch's choice).
        changes["blocked"] = flow.blocked | (flow.even & flow.settled & (flow.value <= 0))
    elif kind is Kind.DROPOUT:  # in train mode only zeros stay constant
        step.ledger.drawn.append(flow.units)
        changes["settled"] = flow.settled & flow.zero
    elif kind is Kind.PRELU:  # as the slope trains, only a zero is a lasting constant
        changes["constant"] = flow.zero
    return flow.through(step.out, **changes)


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
    flags = {
        name: getattr(a, name) & getattr(b, name)
        for name in ("constant", "uniform", "settled", "blocked")
    }
    if step.operation.kind is Kind.PRODUCT:
        # Zero if one side is, and the other side then gets no gradient.
        still = [flow.zero & flow.settled for flow in (a, b)]
        flags["constant"] |= a.zero | b.zero
        flags["uniform"] |= a.zero | b.zero
        flags["settled"] |= still[0] | still[1]
        flags["blocked"] |= (still[0] & a.blocked) | (still[1] & b.blocked)
    return a.through(step.out, step.out.ndim - from_end, **flags)


def _partner(step: Step, side: Any, units: Tensor, from_end: int) -> Flow | None:
    """A number, or a tensor that is the same for all units, as if it had the units."""
    if isinstance(side, (int, float)):
        return plain(0, units, known=True, value=side)
    tensor = step.values[side]
    same_for_all_units = tensor.ndim < from_end or tensor.shape[-from_end] == 1
    return plain(0, units) if same_for_all_units else None


def moved(step: Step) -> Flow | None:
    """Where the units are after a view, a transpose, a slice or a mean over positions.

    The operation itself tells: it runs on the units' numbers. It must do so for any choice of
    units alike, or a size written out, or a unit chosen by its index, would not survive a cut.
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
    """What the operation makes of a tensor like its input that holds the numbers of `units`."""
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
    found, index = step.flows.get(step.input), given(step.node, 1, "index")
    if isinstance(found, tuple):
        return found[index] if found and isinstance(index, int) else None
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
