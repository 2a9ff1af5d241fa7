"""What is refused before connections are selected."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from numbers import Real

import torch

from snip.common.checks import all_finite
from snip.common.errors import InputError, KindError, warn
from snip.common.text import listed
from snip.distributed.shards import local, ranks_of_tensors
from snip.masks import Masks
from snip.network.norms import layer_name
from snip.selection.budgets import Scope, check_scope, checked_sparsity, kept_count, left_in
from snip.selection.granularity import Granularity


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


def asked_sparsity(granularity: Granularity, sparsity: float | None) -> float:
    """Return the sparsity to prune to, which may be left out if the granularity fixes it."""
    own = granularity.sparsity
    if sparsity is None:
        if own is None:
            raise KindError("sparsity is missing: give a number such as 0.95.")
        return own
    sparsity = checked_sparsity(sparsity)
    if own is not None and abs(sparsity - own) > 1e-6:
        raise InputError(
            f"granularity '{granularity}' removes {own:g} of a weight, and sparsity is "
            f"{sparsity:g}: leave it out or write {own:g}."
        )
    return sparsity


def check_granularity(
    granularity: Granularity, scope: Scope, floor: float, *, by_cost: bool
) -> None:
    """Raise if a granularity cannot be combined with the scope, the floor or a cost budget."""
    if not granularity.accepts_scope and (scope != "global" or floor):
        raise InputError(
            f"granularity '{granularity}' decides itself what each layer keeps: no scope, no "
            "floor and no method with shares of its own such as 'erk'."
        )
    if granularity.sparsity is not None and by_cost:
        raise InputError(
            f"granularity '{granularity}' keeps the same of every weight: no cost budget."
        )


def require_some_kept(total: int, sparsity: float) -> None:
    """Refuse a sparsity at which none of `total` connections would be left to train."""
    if kept_count(total, sparsity) == 0:
        raise InputError(
            f"sparsity {sparsity!r} keeps 0 of {total:,} connections: nothing would be left to "
            f"train. {1 - 1 / total!r} keeps one."
        )


def require_left(
    count: int, tensors: Mapping[str, torch.Tensor], within: Mapping[str, torch.Tensor] | None
) -> None:
    """Refuse to keep more connections than the masks `within` have left of some parameters."""
    left = sum(left_in(name, tensor, within) for name, tensor in tensors.items())
    if count > left:
        total = sum(tensor.numel() for tensor in tensors.values())
        raise InputError(
            f"{count:,} connections are to stay but only {left:,} of {total:,} are left in "
            f"{listed(list(tensors))}: the model is pruned already; ask for a sparsity of at "
            f"least {1 - left / total!r} there."
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


def check_within(scores: Mapping[str, torch.Tensor], within: Mapping[str, torch.Tensor]) -> None:
    """Refuse masks to stay inside that do not fit the scores."""
    for name, score in scores.items():
        mask = within.get(name)
        if mask is not None and (mask.dtype != torch.bool or mask.shape != score.shape):
            raise InputError(
                f"within[{name!r}] is {mask.dtype} {tuple(mask.shape)}: give a bool mask of the "
                f"scores' shape {tuple(score.shape)}."
            )


def check_scores(scores: Mapping[str, torch.Tensor]) -> None:
    """Refuse scores that cannot be ranked."""
    if not isinstance(scores, Mapping) or not scores:
        raise KindError("scores must be a non-empty mapping from parameter name to tensor.")
    for name, score in scores.items():
        if not isinstance(score, torch.Tensor) or not score.is_floating_point():
            raise KindError(f"the scores of {name!r} are not a floating-point tensor.")
    with ranks_of_tensors(scores).together():
        for name, score in scores.items():
            if not all_finite(local(score)):
                raise InputError(
                    f"the scores of {name!r} contain NaN or infinity: they cannot be ranked. "
                    "Look at the loss and at the gradients of this layer."
                )
