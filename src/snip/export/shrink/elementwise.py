"""Rules of operations that treat each unit by itself: activations, pooling, padding, sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from snip.export.shrink.flow import Flow
from snip.export.shrink.step import Rule, Step, opaque

Tensor = torch.Tensor


def through(step: Step) -> Flow | None:
    """The same function of every number."""
    if len(step.node.all_input_nodes) > 1:
        return opaque(step)
    return None if step.flow is None else step.flow.through(step.out)


def relu(step: Step) -> Flow | None:
    """A constant that is not positive stops the gradient (at 0 too: PyTorch's choice)."""
    flow = step.flow
    if flow is None:
        return None
    shut = flow.constant & flow.uniform & flow.settled & (flow.value <= 0)
    return flow.through(step.out, blocked=flow.blocked | shut)


def dropout(step: Step) -> Flow | None:
    """In train mode only zeros stay constant."""
    flow = step.flow
    if flow is None:
        return None
    step.network.drawn.append(flow.units)
    return flow.through(step.out, settled=flow.settled & flow.zero)


def prelu(step: Step) -> Flow | None:
    """One slope for all; as it trains, only a zero is a lasting constant."""
    flow = step.flow
    if flow is None or step.module.num_parameters > 1:
        return opaque(step)
    return flow.through(step.out, constant=flow.zero)


def maximum_pool(dimensions: int) -> Rule:
    """The borders are minus infinity: a constant stays."""
    return _over_positions(dimensions, lambda step, flow: flow)


def average_pool(dimensions: int) -> Rule:
    """Zeros at the borders count unless told otherwise."""

    def changed(step: Step, flow: Flow) -> Flow:
        padding, counted = (
            _option(step, 3, "padding", 0),
            _option(step, 5, "count_include_pad", True),
        )
        padded = any(padding) if isinstance(padding, tuple) else bool(padding)
        plain = not (padded and counted) and _option(step, 6, "divisor_override", None) is None
        return flow if plain else replace(flow, uniform=flow.zero)

    return _over_positions(dimensions, changed)


def adaptive_pool(dimensions: int) -> Rule:
    """What is not uniform would depend on the size of the image."""
    return _over_positions(
        dimensions, lambda step, flow: replace(flow, constant=flow.constant & flow.uniform)
    )


def upsample(step: Step) -> Flow | None:
    """New positions between the old: channels are the second dimension."""
    flow = step.flow
    if flow is None or flow.axis != 1:
        return opaque(step)
    return flow.through(step.out)


def pad_module(step: Step) -> Flow | None:
    """ConstantPad and ZeroPad have a value; the others repeat what is there."""
    return _padded(step, step.module.padding, getattr(step.module, "value", None))


def pad(step: Step) -> Flow | None:
    """F.pad(x, padding, mode, value)."""
    repeats = step.given(2, "mode", "constant") != "constant"
    return _padded(step, step.given(1, "pad"), None if repeats else step.given(3, "value") or 0)


def added(step: Step) -> Flow | None:
    """Sums, differences, quotients: a constant if both sides are."""
    return _joined(step, product=False)


def multiplied(step: Step) -> Flow | None:
    """A product is a constant zero if one side is."""
    return _joined(step, product=True)


def _joined(step: Step, *, product: bool) -> Flow | None:
    sides = [step.given(0, "input"), step.given(1, "other")]
    flows = [step.flow_of(side) for side in sides]
    if flows[0] is not None and flows[1] is not None:
        return _of_two(step, flows[0], flows[1], product=product)
    at = 0 if flows[0] is not None else 1
    flow, other = flows[at], sides[1 - at]
    if flow is None:
        return None
    axis = _axis_in_result(step, sides[at], flow)
    if isinstance(other, (int, float)):
        return flow.through(step.out, axis)
    tensor = step.values.get(other) if isinstance(other, fx.Node) else None
    if not isinstance(tensor, Tensor) or not _same_for_all_units(tensor, step.out.ndim - axis):
        return opaque(step)
    return flow.through(step.out, axis, constant=flow.zero if product else flow.zero & False)


def _of_two(step: Step, a: Flow, b: Flow, *, product: bool) -> Flow | None:
    axis = _axis_in_result(step, step.given(0, "input"), a)
    if axis != _axis_in_result(step, step.given(1, "other"), b) or len(a.units) != len(b.units):
        return opaque(step)
    step.network.units.unite(a.units, b.units)
    both = a.through(
        step.out,
        axis,
        constant=a.constant & b.constant,
        uniform=a.uniform & b.uniform,
        settled=a.settled & b.settled,
        blocked=a.blocked & b.blocked,
    )
    if not product:
        return both
    settled = (a.zero & a.settled) | (b.zero & b.settled)
    # The gradient of the other side is multiplied by the zero.
    blocked = (a.zero & a.settled & a.blocked) | (b.zero & b.settled & b.blocked)
    return replace(
        both,
        constant=both.constant | a.zero | b.zero,
        uniform=both.uniform | a.zero | b.zero,
        settled=both.settled | settled,
        blocked=both.blocked | blocked,
    )


def _axis_in_result(step: Step, side: fx.Node, flow: Flow) -> int:
    # Broadcasting aligns dimensions from the last.
    axis: int = step.out.ndim - (step.values[side].ndim - flow.axis)
    return axis


def _same_for_all_units(tensor: Tensor, from_end: int) -> bool:
    return tensor.ndim < from_end or tensor.shape[-from_end] == 1


def _over_positions(dimensions: int, changed: Callable[[Step, Flow], Flow]) -> Rule:
    def rule(step: Step) -> Flow | None:
        flow = step.flow
        if flow is None:
            return None
        if not isinstance(step.out, Tensor) or flow.axis != step.out.ndim - 1 - dimensions:
            return opaque(step)
        return changed(step, flow).through(step.out)

    return rule


def _padded(step: Step, padding: Any, value: float | None) -> Flow | None:
    flow = step.flow
    if flow is None:
        return None
    sizes = tuple(padding)
    if not all(isinstance(size, int) for size in sizes):
        return opaque(step)
    if flow.axis >= step.before.ndim - len(sizes) // 2:
        return opaque(step)
    if value is None or not any(size > 0 for size in sizes):
        return flow.through(step.out)
    return flow.through(step.out, uniform=flow.uniform & (flow.value == value))


def _option(step: Step, index: int, name: str, default: Any) -> Any:
    """An option of a pooling module or function."""
    if step.module is not None:
        return getattr(step.module, name, default)
    return step.given(index, name, default)
