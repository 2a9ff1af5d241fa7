"""Selection turns scores into masks that keep exactly kappa connections (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import torch

from snip.anatomy.packed import Packed, part_names, split
from snip.common.checks import all_finite
from snip.common.errors import InputError, KindError, listed
from snip.masks import Masks, Provenance
from snip.selection.budgets import Scope, kept_count, layers, shares
from snip.selection.checks import check_request, warn_of_unused_sparsity
from snip.selection.topk import keep_top


def select(
    scores: Mapping[str, torch.Tensor],
    *,
    sparsity: float,
    scope: Scope = "global",
    floor: float = 0,
    within: Mapping[str, torch.Tensor] | None = None,
    costs: Mapping[str, float] | None = None,
    packed: Packed | None = None,
) -> Masks:
    """Masks that keep exactly kappa = round(m (1 - sparsity)) connections, the highest scores.

    scope: "global" (one ranking), "layer" and "uniform" (the same sparsity in each layer, in
    each parameter), "erk", or {parameter or layer name: sparsity}.
    floor: what each layer keeps at least, a count or a fraction (global scope).
    within: masks to stay inside, to prune a pruned model further.
    costs: what one element of each parameter costs (FLOPs, say). Then `sparsity` is the fraction
    of the total cost that is saved at least, and the connections with the most score per cost stay.
    packed: parameters that hold several layers (q, k and v), with the names of these: each of them
    has a floor of its own.
    """
    check_request(sparsity, scope, floor, by_cost=costs is not None)
    sparsity = float(sparsity)
    _check_scores(scores)
    _check_within(scores, within or {})
    if costs is not None:
        kept = _by_cost(scores, sparsity, within, costs)
    elif floor:
        kept = _with_floor(scores, sparsity, floor, within or {}, packed or {})
    else:
        kept = {}
        for names, count in shares(scores, sparsity, scope):
            kept |= _keep({name: scores[name] for name in names}, count, within)
    plain = scope if isinstance(scope, str) else {k: float(v) for k, v in scope.items()}
    asked = Provenance(sparsity_asked=sparsity, scope=plain, floor=float(floor))
    masks = Masks({name: kept[name] for name in scores}, asked)
    warn_of_unused_sparsity(masks, sparsity, scope)
    return masks


def _keep(
    scores: Mapping[str, torch.Tensor], count: int, within: Mapping[str, torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """The `count` highest scores, or an error if fewer connections than that are left."""
    left = sum(_left(name, score, within) for name, score in scores.items())
    if count > left:
        total = sum(score.numel() for score in scores.values())
        raise InputError(
            f"{count:,} connections are to stay but only {left:,} of {total:,} are left in "
            f"{listed(list(scores))}: the model is pruned already; ask for a sparsity of at "
            f"least {1 - left / total!r} there."
        )
    return keep_top(scores, count, within)


def _floor_groups(scores: Mapping[str, torch.Tensor], packed: Packed) -> dict[str, list[str]]:
    """What has a floor of its own: each layer, and each part of a packed weight with its biases."""
    groups = layers({name: score for name, score in scores.items() if name not in packed})
    for name in scores:
        for part in part_names(name, packed) if name in packed else ():
            groups.setdefault(part.replace("bias", "weight"), []).append(part)
    return groups


def _with_floor(
    whole: Mapping[str, torch.Tensor],
    sparsity: float,
    floor: float,
    within: Mapping[str, torch.Tensor],
    packed: Packed,
) -> dict[str, torch.Tensor]:
    """One ranking in which every layer keeps at least its floor; the total stays exact."""
    free = _floor_groups(whole, packed)
    scores, within = split(whole, packed), split(within, packed)
    floors = {layer: _floor_of(names, scores, floor, within) for layer, names in free.items()}
    left = kept_count(sum(s.numel() for s in scores.values()), sparsity)
    if sum(floors.values()) > left:
        raise InputError(
            f"floor={floor} asks for {sum(floors.values()):,} connections over {len(floors)} "
            f"layers, but sparsity {sparsity:g} keeps {left:,}: lower one of them."
        )
    fixed: dict[str, torch.Tensor] = {}
    while True:
        ranked = _keep({n: scores[n] for names in free.values() for n in names}, left, within)
        short = [
            layer
            for layer, names in free.items()
            if sum(int(ranked[n].count_nonzero()) for n in names) < floors[layer]
        ]
        if not short:
            parts = fixed | ranked
            return {
                n: torch.cat([parts[x] for x in part_names(n, packed)]) if n in packed else parts[n]
                for n in whole
            }
        # A layer that falls short gets its floor and leaves the race; what it takes may push
        # another layer below its own, so rank the rest again.
        for layer in short:
            fixed |= _keep({n: scores[n] for n in free.pop(layer)}, floors[layer], within)
            left -= floors[layer]


def _by_cost(
    scores: Mapping[str, torch.Tensor],
    sparsity: float,
    within: Mapping[str, torch.Tensor] | None,
    costs: Mapping[str, float],
) -> dict[str, torch.Tensor]:
    """The connections with the most score per cost, as many as the budget pays for."""
    for name in scores:
        if not 0 < costs.get(name, 0) < math.inf:
            raise InputError(f"costs[{name!r}] is {costs.get(name)}: every cost must be positive.")
    # The decimals that the user wrote, exactly: rounding would overspend the budget, or leave out
    # a connection that just fits.
    exact = {name: Fraction(str(float(costs[name]))) for name in scores}
    total = sum(score.numel() * exact[name] for name, score in scores.items())
    affordable = total * (1 - Fraction(str(sparsity)))
    left = sum(_left(name, score, within) * exact[name] for name, score in scores.items())
    if left < affordable:
        raise InputError(
            f"the model is pruned already, to {float(1 - left / total):.4%} of its cost saved: ask "
            f"for a higher sparsity than {sparsity:g}."
        )
    per_cost = {name: score / costs[name] for name, score in scores.items()}
    return keep_top(per_cost, affordable, within, exact)


def _floor_of(
    names: list[str],
    scores: Mapping[str, torch.Tensor],
    floor: float,
    within: Mapping[str, torch.Tensor] | None,
) -> int:
    """How many connections a layer keeps at least; never more than it has left."""
    size = sum(scores[name].numel() for name in names)
    left = sum(_left(name, scores[name], within) for name in names)
    return min(left, int(floor) if floor >= 1 else round(size * floor))


def _left(name: str, score: torch.Tensor, within: Mapping[str, torch.Tensor] | None) -> int:
    """How many connections of a parameter may still be kept."""
    return int(within[name].count_nonzero()) if within and name in within else score.numel()


def _check_within(scores: Mapping[str, torch.Tensor], within: Mapping[str, torch.Tensor]) -> None:
    for name, score in scores.items():
        mask = within.get(name)
        if mask is not None and (mask.dtype != torch.bool or mask.shape != score.shape):
            raise InputError(
                f"within[{name!r}] is {mask.dtype} {tuple(mask.shape)}: give a bool mask of the "
                f"scores' shape {tuple(score.shape)}."
            )


def _check_scores(scores: Mapping[str, torch.Tensor]) -> None:
    if not isinstance(scores, Mapping) or not scores:
        raise KindError("scores must be a non-empty mapping from parameter name to tensor.")
    for name, score in scores.items():
        if not isinstance(score, torch.Tensor) or not score.is_floating_point():
            raise KindError(f"the scores of {name!r} are not a floating-point tensor.")
        if not all_finite(score):
            raise InputError(
                f"the scores of {name!r} contain NaN or infinity: they cannot be ranked. "
                "Look at the loss and at the gradients of this layer."
            )
