"""What is refused before connections are selected."""

from __future__ import annotations

import math
from numbers import Real

from snip.common.errors import InputError
from snip.selection.budgets import Scope, check_scope, checked_sparsity, kept_count


def check_request(sparsity: float, scope: Scope, floor: float | str, *, by_cost: bool) -> None:
    """Refuse a sparsity, scope or floor that means nothing, and those that exclude each other."""
    checked_sparsity(sparsity)
    check_scope(scope)
    if isinstance(floor, (bool, str)) or not isinstance(floor, Real) or not 0 <= floor < math.inf:
        raise InputError(f"floor is {floor!r}: give a count such as 10, or a fraction below 1.")
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
