"""What is refused before connections are selected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real

from snip.anatomy.normed import layer_name
from snip.common.errors import InputError, warn
from snip.masks import Masks
from snip.selection.budgets import Scope, check_scope, checked_sparsity, kept_count


def check_request(sparsity: float, scope: Scope, floor: float | str, *, by_cost: bool) -> None:
    """Refuse a sparsity, scope or floor that means nothing, and those that exclude each other."""
    checked_sparsity(sparsity)
    check_scope(scope)
    if isinstance(floor, (bool, str)) or not isinstance(floor, Real) or not 0 <= floor < math.inf:
        raise InputError(f"floor is {floor!r}: give a count such as 10, or a fraction below 1.")
    if floor > 1 and floor != int(floor):
        raise InputError(
            f"floor is {floor:g}: from 1 on it is a count, which must be whole; a fraction of each "
            f"layer is below 1, such as {floor / 100:g} for {floor:g}%."
        )
    if by_cost and (scope != "global" or floor):
        raise InputError("a cost budget ranks all connections together: no scope, no floor.")
    if floor and scope != "global":
        raise InputError(f"floor goes with scope='global', not {scope!r}: the others give shares.")


def require_some_kept(total: int, sparsity: float) -> None:
    """Refuse a sparsity at which none of `total` connections would be left to train."""
    if kept_count(total, sparsity) == 0:
        raise InputError(
            f"sparsity {sparsity!r} keeps 0 of {total:,} connections: nothing would be left to "
            f"train. {1 - 1 / total!r} keeps one."
        )


def warn_of_unused_sparsity(masks: Masks, sparsity: float, scope: Scope) -> None:
    """Say so if a scope names a sparsity for everything, and the common one has no effect."""
    if isinstance(scope, str) or any(not named for named in _named_by(scope, masks)):
        return
    if abs(masks.kept - kept_count(masks.total, sparsity)) > len(masks):
        warn(
            f"scope gives every layer a sparsity of its own, {masks.sparsity:.4g} in all: the "
            f"sparsity={sparsity:g} asked for beside it has no effect.",
        )


def _named_by(scope: Mapping[str, float], masks: Masks) -> Iterator[bool]:
    """For each parameter, whether it or its layer is in the scope."""
    return (name in scope or layer_name(name) in scope for name in masks)
