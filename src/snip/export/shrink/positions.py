"""Rules of operations that treat each unit by itself: activations, pooling, padding, sums.

A rule takes a step and what flows into it, and returns what flows on: None where it does not know,
and then everything that flowed in stays.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from snip.export.shrink.flow import Flow
from snip.export.shrink.ledger import Step
from snip.tracing.arguments import given, setting
from snip.tracing.kinds import Kind

Tensor = torch.Tensor


def through(step: Step, flow: Flow) -> Flow | None:
    """The same function of every number."""
    if len(step.node.all_input_nodes) > 1:  # bounds or slopes that may differ between units
        return None
    return flow.through(step.out)


def rectifier(step: Step, flow: Flow) -> Flow:
    """A constant that is not positive stops the gradient (at 0 too, by PyTorch's choice)."""
    shut = flow.even & flow.settled & (flow.value <= 0)
    return flow.through(step.out, blocked=flow.blocked | shut)


def dropout(step: Step, flow: Flow) -> Flow:
    """In train mode only zeros stay constant."""
    step.ledger.drawn.append(flow.units)
    return flow.through(step.out, settled=flow.settled & flow.zero)


def prelu(step: Step, flow: Flow) -> Flow | None:
    """With one slope for all units; as it trains, only a zero is a lasting constant."""
    if step.module is None or step.module.num_parameters > 1:
        return None
    return flow.through(step.out, constant=flow.zero)


def pool(step: Step, flow: Flow) -> Flow | None:
    """Windows over positions, in front of which the units lie."""
    kind = step.operation.kind
    if flow.axis != step.out.ndim - 1 - step.operation.dimensions:
        return None
    if kind in (Kind.ADAPTIVE_AVERAGE_POOL, Kind.ADAPTIVE_MAX_POOL):
        # What is not uniform would depend on the size of the image.
        flow = replace(flow, constant=flow.even)
    elif kind is Kind.AVERAGE_POOL and _counts_the_border(step):
        flow = replace(flow, uniform=flow.zero)
    return flow.through(step.out)


def upsample(step: Step, flow: Flow) -> Flow | None:
    """New positions between the old: channels are the second dimension."""
    return flow.through(step.out) if flow.axis == 1 else None


def pad(step: Step, flow: Flow) -> Flow | None:
    """New positions with one value, or with copies of what is there."""
    if step.module is not None:  # only ConstantPad and ZeroPad have a value
        sizes, value = step.module.padding, getattr(step.module, "value", None)
    else:
        repeats = given(step.node, 2, "mode", "constant") != "constant"
        sizes = given(step.node, 1, "pad")
        value = None if repeats else given(step.node, 3, "value") or 0
    if not all(isinstance(size, int) for size in sizes):
        return None
    if flow.axis >= step.before.ndim - len(sizes) // 2:
        return None
    if value is None or not any(size > 0 for size in sizes):
        return flow.through(step.out)
    return flow.through(step.out, uniform=flow.uniform & (flow.value == value))


def joined(step: Step) -> Flow | None:
    """Two sides, number by number; either may be a number or a tensor without units."""
    product = step.operation.kind is Kind.PRODUCT
    sides = given(step.node, 0, "input"), given(step.node, 1, "other")
    first, second = map(step.flow_of, sides)
    if first is not None and second is not None:
        return _of_two(step, sides, first, second, product=product)
    flow = first or second
    if flow is None:
        return None
    side, other = sides if flow is first else sides[::-1]
    axis = _axis_in_result(step, side, flow)
    if isinstance(other, (int, float)):
        return flow.through(step.out, axis)
    tensor, from_end = step.values[other], step.out.ndim - axis
    same_for_all_units = tensor.ndim < from_end or tensor.shape[-from_end] == 1
    if not same_for_all_units:
        return None
    return flow.through(step.out, axis, constant=flow.zero & product)


def _of_two(
    step: Step, sides: tuple[fx.Node, fx.Node], a: Flow, b: Flow, *, product: bool
) -> Flow | None:
    axis = _axis_in_result(step, sides[0], a)
    if axis != _axis_in_result(step, sides[1], b) or len(a.units) != len(b.units):
        return None
    step.ledger.units.unite(a.units, b.units)
    flags = {
        name: getattr(a, name) & getattr(b, name)
        for name in ("constant", "uniform", "settled", "blocked")
    }
    if product:  # zero if one side is, and the other side then gets no gradient
        still = [flow.zero & flow.settled for flow in (a, b)]
        flags["constant"] |= a.zero | b.zero
        flags["uniform"] |= a.zero | b.zero
        flags["settled"] |= still[0] | still[1]
        flags["blocked"] |= (still[0] & a.blocked) | (still[1] & b.blocked)
    return a.through(step.out, axis, **flags)


def _axis_in_result(step: Step, side: fx.Node, flow: Flow) -> int:
    # Broadcasting aligns dimensions from the last.
    axis: int = step.out.ndim - (step.values[side].ndim - flow.axis)
    return axis


def _counts_the_border(step: Step) -> bool:
    """Whether zeros at the border count in an average, or it is no average of its window."""
    padding = setting(step.node, step.module, 3, "padding", 0)
    padded = any(padding) if isinstance(padding, (tuple, list)) else bool(padding)
    counted = setting(step.node, step.module, 5, "count_include_pad", True)
    return (padded and counted) or setting(
        step.node, step.module, 6, "divisor_override"
    ) is not None
