"""What is refused before connections are selected, and what is warned of after."""

from __future__ import annotations

import math
import warnings
from numbers import Real

from snip.common.errors import InputError, SnipWarning, listed
from snip.masks import Masks, empty_layers
from snip.selection.budgets import Scope, check_scope, checked_sparsity, kept_count


def check_request(sparsity: float, scope: Scope, floor: float, *, by_cost: bool) -> None:
    """Refuse a sparsity, scope or floor that means nothing, and those that exclude each other."""
    checked_sparsity(sparsity)
    check_scope(scope)
    if isinstance(floor, bool) or not isinstance(floor, Real) or not 0 <= floor < math.inf:
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


def warn_of_empty_layers(masks: Masks) -> None:
    """Name the layers that keep no connection at all."""
    empty = empty_layers(masks)
    if empty:
        warnings.warn(
            f"nothing is left of {listed(empty)} at sparsity {masks.sparsity:.4g}: the signal "
            "ends there unless a shortcut passes it by. Use floor=..., another scope "
            "('erk', 'layer'), more scoring data, or a lower sparsity.",
            SnipWarning,
            stacklevel=3,
        )
