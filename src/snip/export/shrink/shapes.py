"""Rules of operations that move dimensions about, and of questions about sizes."""

from __future__ import annotations

import torch

from snip.export.shrink.flow import Flow, live_flow, side_by_side
from snip.export.shrink.ledger import NOTHING, Flows, Step
from snip.tracing.arguments import given
from snip.tracing.kinds import Kind
from snip.tracing.operations import operation

Tensor = torch.Tensor


def moved(step: Step, flow: Flow) -> Flow | None:
    """Where the units are after a view, a transpose, a slice or a mean over positions.

    The operation itself tells: it runs on the units' numbers. It must do so for any choice of
    units alike, or a size written out, or a unit chosen by its index, would not survive a cut.
    """
    units = torch.arange(len(flow.units) + 1)
    grown, cut, alone = (_numbered(step, flow.axis, some) for some in (units, units[1:], units[:1]))
    if not grown.ndim == cut.ndim == alone.ndim:
        return None
    longer = [dim for dim in range(grown.ndim) if grown.shape[dim] > cut.shape[dim]]
    if len(longer) != 1:
        return None
    (axis,) = longer
    numbers = grown.movedim(axis, 0).flatten(1)[:, 0]
    if not (grown.movedim(axis, -1) == numbers).all():
        return None
    for some, kept in ((cut, numbers > 0), (alone, numbers == 0)):
        if not torch.equal(grown.movedim(axis, 0)[kept], some.movedim(axis, 0)):
            return None
    return _known(
        step, flow.mapped(lambda entry: entry[numbers[numbers < len(entry)].long()]), axis
    )


def concatenate(step: Step) -> Flow | None:
    """Along the units; parts that cannot be cut stay whole."""
    parts, axis = given(step.node, 0, "tensors"), given(step.node, 1, "dim", 0) % step.out.ndim
    flows = [step.flow_of(part) for part in parts]
    known = [flow for flow in flows if flow is not None]
    if not known or any(flow.axis != axis for flow in known):
        return None
    whole = [
        _uncut(step, step.values[part].shape[axis], axis) if flow is None else flow
        for part, flow in zip(parts, flows, strict=True)
    ]
    return side_by_side(whole)


def item(step: Step) -> Flows:
    """An item of a tuple, or a part of a tensor."""
    found, index = step.flows.get(step.input), given(step.node, 1, "index")
    if isinstance(found, tuple):
        return found[index] if found and isinstance(index, int) else None
    return None if found is None else moved(step, found)


def size(step: Step) -> Flows:
    """x.size(), x.size(dim), x.shape: nobody may compute with the number of units."""
    flow, dim = step.flow_of(step.input), given(step.node, 1, "dim")
    asked = [dim]
    if not isinstance(dim, int):  # the whole shape, of which each reader may take an item
        readers = [user for user in step.node.users if user.users]
        items = [operation(user, None).kind is Kind.ITEM for user in readers]
        asked = [u.args[1] if takes else None for u, takes in zip(readers, items, strict=True)]
    if flow is None:
        return NOTHING
    rank = step.before.ndim
    others = all(isinstance(dim, int) and dim % rank != flow.axis for dim in asked)
    return NOTHING if others else None


def attribute(step: Step) -> Flows:
    """x.shape, x.dtype and the like."""
    name = given(step.node, 1, "name")
    if name == "shape":
        return size(step)
    return NOTHING if name in ("ndim", "dtype", "device") else None


def _numbered(step: Step, axis: int, units: Tensor) -> Tensor:
    """What the operation makes of a tensor like its input that holds the numbers of `units`."""
    shape = list(step.before.shape)
    shape[axis] = len(units)
    numbers = units.double().view(-1, *[1] * (len(shape) - axis - 1)).expand(shape)
    out: Tensor = step.again(numbers.clone())
    # The sum of equal numbers is as many times as large as there are of them.
    scale = out.numel() / numbers.numel() if step.operation.kind is Kind.TOTAL else 1
    return out * scale


def _known(step: Step, flow: Flow, axis: int) -> Flow:
    """What is still known of constants that may differ between positions."""
    constant, uniform, kind = flow.even, flow.uniform, step.operation.kind
    if kind is Kind.TOTAL:  # it grows with the number of positions
        constant = flow.zero
    elif kind in (Kind.FLATTEN, Kind.VIEW) and axis == flow.axis:
        constant = flow.constant
        # [batch, features]: every feature has one position, and the next layer fixes their number.
        uniform = flow.constant if step.out.ndim == 2 and axis == 1 else uniform
    return flow.through(step.out, axis, constant=constant, uniform=uniform)


def _uncut(step: Step, count: int, axis: int) -> Flow:
    units = step.ledger.units.new(count)
    step.ledger.pin(units, f"joined by {step.described} with a part that cannot be cut")
    return live_flow(units, axis)
