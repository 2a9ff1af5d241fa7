"""Selection turns scores into masks that keep exactly kappa connections (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import torch

from snip.common.errors import InputError
from snip.masks import Masks, Provenance
from snip.network.layout import Packed, part_names, split
from snip.selection.budgets import Scope, kept_count, layers, left_in, shares
from snip.selection.checks import (
    asked_sparsity,
    check_granularity,
    check_request,
    check_scores,
    check_within,
    require_left,
    warn_of_unused_sparsity,
)
from snip.selection.granularity import Granularity, checked_granularity

Tensors = Mapping[str, torch.Tensor]


def select(
    scores: Tensors,
    *,
    sparsity: float | None = None,
    scope: Scope = "global",
    floor: float = 0,
    within: Tensors | None = None,
    costs: Mapping[str, float] | None = None,
    granularity: str | Granularity = "element",
    packed: Packed | None = None,
) -> Masks:
    """Masks that keep exactly kappa = round(m (1 - sparsity)) connections, the highest scores.

    scope: "global" (one ranking), "layer" and "uniform" (the same sparsity in each layer, in
    each parameter), "erk", or {parameter or layer name: sparsity}.
    floor: what each layer keeps at least, a count or a fraction (global scope).
    within: masks to stay inside, to prune a pruned model further.
    costs: what one element of each parameter costs (FLOPs, say). Then `sparsity` is the fraction
    of the total cost that is saved at least, and the connections with the most score per cost stay.
    granularity: what is kept or removed whole: "element", "channel" (as `snip.Channel().on(model,
    batch)`), n of m inputs such as "2:4", which has its own sparsity, or blocks such as "4x4".
    Blocks with the most score per connection stay, and the same share of each layer's channels, as
    many as kappa connections allow: the masks then keep kappa or a little less.
    packed: parameters that hold several layers (q, k and v), with the names of these: each of them
    has a floor of its own.
    """
    granularity = checked_granularity(granularity)
    sparsity = asked_sparsity(granularity, sparsity)
    check_request(sparsity, scope, floor, by_cost=costs is not None)
    check_granularity(granularity, scope, floor, by_cost=costs is not None)
    check_scores(scores)
    check_within(scores, within or {})
    if granularity.sparsity is not None:  # the pattern decides, not a budget
        kept = granularity.keep(scores, 0, within)
    elif costs is not None:
        kept = _by_cost(granularity, scores, sparsity, within, costs)
    elif floor:
        kept = _with_floor(granularity, scores, sparsity, floor, within or {}, packed or {})
    else:
        kept = {}
        for names, count in shares(scores, sparsity, scope):
            kept |= _keep(granularity, {name: scores[name] for name in names}, count, within)
    plain = scope if isinstance(scope, str) else {k: float(v) for k, v in scope.items()}
    asked = Provenance(
        sparsity_asked=sparsity, scope=plain, floor=float(floor), granularity=str(granularity)
    )
    masks = Masks({name: kept[name] for name in scores}, asked)
    granularity.check_kept(masks.kept, sparsity)
    warn_of_unused_sparsity(masks, sparsity, scope)
    return masks


def _keep(
    granularity: Granularity,
    scores: Tensors,
    count: int,
    within: Tensors | None,
    *,
    round_up: bool = False,
) -> dict[str, torch.Tensor]:
    """Keep the `count` highest scores; raise if fewer connections than that are left."""
    require_left(count, scores, within)
    return granularity.keep(scores, count, within, round_up=round_up)


def _floor_groups(scores: Tensors, packed: Packed) -> dict[str, list[str]]:
    """What has a floor of its own: each layer, and each part of a packed weight with its biases."""
    groups = layers({name: score for name, score in scores.items() if name not in packed})
    for name in scores:
        for part in part_names(name, packed) if name in packed else ():
            groups.setdefault(part.replace("bias", "weight"), []).append(part)
    return groups


def _with_floor(
    granularity: Granularity,
    whole: Tensors,
    sparsity: float,
    floor: float,
    within: Tensors,
    packed: Packed,
) -> dict[str, torch.Tensor]:
    """One ranking in which every layer keeps at least its floor; the total stays exact."""
    packed = {  # the others have one floor, because a block would lie in two parts
        name: parts
        for name, parts in packed.items()
        if name in whole and granularity.fits_rows(len(whole[name]) // len(parts))
    }
    free = _floor_groups(whole, packed)
    scores, within = split(whole, packed), split(within, packed)
    floors = {layer: _floor_of(names, scores, floor, within) for layer, names in free.items()}
    kept = left = kept_count(sum(s.numel() for s in scores.values()), sparsity)
    need = sum(floors.values())
    fixed: dict[str, torch.Tensor] = {}
    while True:
        if max(need, kept - left) > kept:  # whole blocks may take more than their floor
            raise InputError(
                f"floor={floor} asks for {max(need, kept - left):,} connections over {len(floors)} "
                f"layers, but sparsity {sparsity:g} keeps {kept:,}: lower one of them."
            )
        rest = {name: scores[name] for names in free.values() for name in names}
        ranked = _keep(granularity, rest, left, within)
        short = [layer for layer, names in free.items() if _count(ranked, names) < floors[layer]]
        if not short:
            parts = fixed | ranked
            return {
                n: torch.cat([parts[x] for x in part_names(n, packed)]) if n in packed else parts[n]
                for n in whole
            }
        # A layer that falls short gets its floor and leaves the race; what it takes may push
        # another layer below its own, so rank the rest again.
        for layer in short:
            names = free.pop(layer)
            own = {name: scores[name] for name in names}
            fixed |= _keep(granularity, own, floors[layer], within, round_up=True)
            left -= _count(fixed, names)


def _by_cost(
    granularity: Granularity,
    scores: Tensors,
    sparsity: float,
    within: Tensors | None,
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
    left = sum(left_in(name, score, within) * exact[name] for name, score in scores.items())
    if left < affordable:
        raise InputError(
            f"the model is pruned already, to {float(1 - left / total):.4%} of its cost saved: ask "
            f"for a higher sparsity than {sparsity:g}."
        )
    return granularity.keep(scores, affordable, within, exact)


def _floor_of(
    names: list[str],
    scores: Tensors,
    floor: float,
    within: Tensors | None,
) -> int:
    """How many connections a layer keeps at least; never more than it has left."""
    size = sum(scores[name].numel() for name in names)
    left = sum(left_in(name, scores[name], within) for name in names)
    return min(left, int(floor) if floor >= 1 else round(size * floor))


def _count(masks: Tensors, names: list[str]) -> int:
    """How many connections of some parameters are kept."""
    return sum(int(masks[name].count_nonzero()) for name in names)
