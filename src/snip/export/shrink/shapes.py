"""Rules of operations that move dimensions about, and of questions about sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from snip.export.shrink.flow import Flow, live_flow, side_by_side
from snip.export.shrink.step import Rule, Step, opaque

Tensor = torch.Tensor


def flatten_module(step: Step) -> Flow | None:
    return _flattened(step, step.module.start_dim, step.module.end_dim)


def flatten(step: Step) -> Flow | None:
    """x.flatten(start, end)."""
    return _flattened(step, step.given(1, "start_dim", 0), step.given(2, "end_dim", -1))


def view(step: Step) -> Flow | None:
    """Only as a flatten with -1 for what is flattened: a written size would not shrink along."""
    flow, sizes = step.flow, _listed(step, 1, "shape")
    if flow is None:
        return None
    before, out = step.before, step.out
    same = out.ndim == flow.axis + 1 and out.shape[:-1] == before.shape[: flow.axis]
    # A -1 before the last would be found from the last, which is then written out.
    if not same or not sizes or not isinstance(sizes[-1], int) or sizes[-1] != -1:
        return opaque(step)
    return _flattened(step, flow.axis, -1)


def reduce_positions(*, scales: bool) -> Rule:
    """mean, amax, amin; and sum, which `scales` with the number of positions."""

    def rule(step: Step) -> Flow | None:
        flow, dims = step.flow, step.given(1, "dim")
        if flow is None:
            return None
        dims = [dims] if isinstance(dims, int) else dims
        if not dims or not all(isinstance(dim, int) for dim in dims):
            return opaque(step)
        gone = {step.dimension(dim) for dim in dims}
        if flow.axis in gone or not isinstance(step.out, Tensor):
            return opaque(step)
        keepdim = step.given(2, "keepdim", False)
        axis = flow.axis if keepdim else flow.axis - sum(dim < flow.axis for dim in gone)
        # What is not uniform would depend on the size of the image.
        lasting = flow.zero if scales else flow.constant & flow.uniform
        return flow.through(step.out, axis, constant=lasting)

    return rule


def squeeze(step: Step) -> Flow | None:
    """Only with named dimensions: a lone unit must not be squeezed away."""
    flow, dims = step.flow, step.given(1, "dim")
    if flow is None:
        return None
    gone = {step.dimension(dim) for dim in ([dims] if isinstance(dims, int) else dims or ())}
    if not gone or flow.axis in gone:
        return opaque(step)
    gone = {dim for dim in gone if step.before.shape[dim] == 1}
    return _moved(step, flow, flow.axis - sum(dim < flow.axis for dim in gone))


def unsqueeze(step: Step) -> Flow | None:
    flow = step.flow
    if flow is None:
        return None
    new = step.given(1, "dim") % step.out.ndim
    return _moved(step, flow, flow.axis + (new <= flow.axis))


def transpose(step: Step) -> Flow | None:
    flow = step.flow
    if flow is None:
        return None
    a, b = (step.dimension(step.given(i, f"dim{i - 1}")) for i in (1, 2))
    return _moved(step, flow, {a: b, b: a}.get(flow.axis, flow.axis))


def permute(step: Step) -> Flow | None:
    flow = step.flow
    if flow is None:
        return None
    order = [step.dimension(dim) for dim in _listed(step, 1, "dims")]
    return _moved(step, flow, order.index(flow.axis))


def concatenate(step: Step) -> Flow | None:
    """Along the units; parts that cannot be cut stay whole."""
    parts = step.given(0, "tensors")
    flows = [step.flow_of(part) for part in parts]
    known = [flow for flow in flows if flow is not None]
    if not known:
        return None
    axis = step.given(1, "dim", 0) % step.out.ndim
    if any(flow.axis != axis for flow in known):
        return opaque(step)
    whole = [
        _fixed(step, step.values[part].shape[axis], axis) if flow is None else flow
        for part, flow in zip(parts, flows, strict=True)
    ]
    return side_by_side(whole)


def getitem(step: Step) -> Any:
    """An item of a tuple, or integers and slices of dimensions other than the units'."""
    found, index = step.flows.get(step.input), step.given(1, "index")
    if isinstance(found, tuple):
        return found[index] if isinstance(index, int) else opaque(step)
    if found is None or not isinstance(step.before, Tensor):
        return None
    axis = _axis_after(found.axis, index if isinstance(index, tuple) else (index,), step)
    return opaque(step) if axis is None else _moved(step, found, axis)


def size(step: Step) -> Flow | None:
    """x.size(): nobody may compute with the number of units."""
    dim = step.given(1, "dim")
    if dim is None:
        return _shape(step)
    if step.flow is not None and (
        not isinstance(dim, int) or step.dimension(dim) == step.flow.axis
    ):
        return opaque(step)
    return None


def attribute(step: Step) -> Flow | None:
    """getattr(x, name)."""
    name = step.given(1, "name")
    if name == "shape":
        return _shape(step)
    return None if name in ("ndim", "dtype", "device") else opaque(step)


def nothing(step: Step) -> Flow | None:
    """A question whose answer does not depend on the number of units."""
    return None


def _shape(step: Step) -> Flow | None:
    asked = [user for user in step.node.users if user.users]
    dims = [user.args[1] if _is_getitem(user) else None for user in asked]
    flow = step.flow
    if flow is not None and not all(
        isinstance(dim, int) and step.dimension(dim) != flow.axis for dim in dims
    ):
        return opaque(step)
    return None


def _is_getitem(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", None) == "getitem"


def _flattened(step: Step, start: int, end: int) -> Flow | None:
    flow = step.flow
    if flow is None:
        return None
    start, end, axis = step.dimension(start), step.dimension(end), flow.axis
    if end < axis:
        return _moved(step, flow, axis - (end - start))
    if start > axis:
        return flow.through(step.out)
    if start < axis:
        return opaque(step)
    each = math.prod(step.before.shape[axis + 1 : end + 1])
    flow = flow.mapped(lambda entries: entries.repeat_interleave(each))
    # [batch, features]: every feature has one position, and the next layer fixes their number.
    alone = step.out.ndim == 2 and axis == 1
    uniform = flow.constant if alone else flow.uniform
    return flow.through(step.out, uniform=uniform)


def _moved(step: Step, flow: Flow, axis: int) -> Flow:
    """Positions may now lie along any dimension, so only what is uniform stays known."""
    return flow.through(step.out, axis, constant=flow.constant & flow.uniform)


def _axis_after(axis: int, index: tuple[Any, ...], step: Step) -> int | None:
    """Where dimension `axis` is after indexing; None if the units themselves are chosen from."""
    if not all(item is None or item is ... or isinstance(item, (int, slice)) for item in index):
        return None
    if ... in index:
        at = index.index(...)
        taken = sum(item is not None and item is not ... for item in index)
        every = (slice(None),) * (step.before.ndim - taken)
        index = (*index[:at], *every, *index[at + 1 :])
    before = after = 0
    for item in index:
        if item is not None and before == axis:
            return after if isinstance(item, slice) and item == slice(None) else None
        before += item is not None
        after += item is None or isinstance(item, slice)
    return after + axis - before


def _fixed(step: Step, count: int, axis: int) -> Flow:
    units = step.network.units.new(count)
    step.network.pin(units, f"joined by {step.described} with a part that cannot be cut")
    return live_flow(units, axis)


def _listed(step: Step, index: int, name: str) -> list[Any]:
    """Sizes or dimensions, given as one sequence or one by one."""
    first = step.given(index, name)
    if isinstance(first, (tuple, list)):
        return list(first)
    return list(step.node.args[index:])
