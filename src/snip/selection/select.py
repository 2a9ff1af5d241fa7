"""Selection turns scores into masks that keep exactly kappa connections (Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch

from snip.common.checks import all_finite
from snip.common.errors import InputError, KindError, warn
from snip.common.text import listed
from snip.distributed.shards import local, ranks_of_tensors
from snip.masks import Masks, Provenance
from snip.network.layout import Packed, part_names, split
from snip.network.network import Network
from snip.network.norms import NormedWeight, layer_name
from snip.selection.budgets import Scope, kept_count, layers, left_in, shares
from snip.selection.granularity import Granularity
from snip.selection.request import CONNECTIONS, FLOPS, Request

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
    if isinstance(floor, str):
        raise InputError(f"floor is {floor!r}: give a count such as 10, or a fraction below 1.")
    request = Request.of(
        sparsity=sparsity,
        granularity=granularity,
        scope=scope,
        floor=floor,
        budget=CONNECTIONS if costs is None else FLOPS,
    )
    return _select(scores, request, within=within, costs=costs, packed=packed)


@dataclass(frozen=True, eq=False)
class Selection:
    """Selection for one network: inside what it has left, and with what its norms need."""

    network: Network
    within: Masks | None = None
    costs: Mapping[str, float] | None = None  # of one element of each parameter

    def masks(self, scores: Tensors, request: Request) -> Masks:
        """Select; the granularity of the request knows the network (`Granularity.on`)."""
        raised = with_survivors(
            self.network.normed,
            scores,
            within=self.within,
            costs=self.costs,
            group_size=request.granularity.group_size,
        )
        packed = self.network.packed
        return _select(raised, request, within=self.within, costs=self.costs, packed=packed)


def with_survivors(
    normed: Mapping[str, NormedWeight],
    scores: Mapping[str, torch.Tensor],
    *,
    within: Mapping[str, torch.Tensor] | None = None,
    costs: Mapping[str, float] | None = None,
    group_size: int = 1,
) -> dict[str, torch.Tensor]:
    """The scores, with the best of each part that a norm divides raised above all others.

    Weight norm and spectral norm divide a weight by the length of its stored tensor: if all of that
    were zero, they would divide zero by zero. So one connection stays in each part that is divided,
    a row under weight norm, the whole weight under spectral norm. Elsewhere scores mean the same as
    in any layer: |v dL/dv| of a stored tensor v is |dL/dc| at c = 1 (Eq. 4) with c v in place of v.
    It includes that the rest of a row grows when a connection goes, because the row keeps its
    length.

    `within` and `costs` are those of `select`, so that what is raised can win and does, even where
    groups of `group_size` connections are ranked by their mean.
    """
    normed = {name: weight for name, weight in normed.items() if name in scores}
    raised = dict(scores)
    if not normed:
        return raised
    prices = list((costs or {"each": 1.0}).values())
    # Scores may have a sign, and a price multiplies a score below zero.
    largest = max(float(score.abs().max()) for score in scores.values() if score.numel())
    top = 2 * largest * group_size * max(prices) / min(prices)
    for name, weight in normed.items():
        score = scores[name].clone()
        inside = (within or {}).get(name)
        allowed = score if inside is None else score.where(inside.to(score.device), -torch.inf)
        places = weight.parts(allowed).argmax(1, keepdim=True)
        # What `parts` gives may be a copy, so that the places are marked in a tensor of their own.
        index = weight.parts(torch.arange(score.numel(), device=score.device).view(score.shape))
        score.view(-1)[index.gather(1, places)] = min(top, torch.finfo(score.dtype).max)
        raised[name] = score
    return raised


def _select(
    scores: Tensors,
    request: Request,
    *,
    within: Tensors | None,
    costs: Mapping[str, float] | None,
    packed: Packed | None,
) -> Masks:
    _check_scores(scores)
    _check_within(scores, within or {})
    sparsity, granularity = request.sparsity, request.granularity
    if granularity.sparsity is not None:  # the pattern decides, not a budget
        kept = granularity.keep(scores, 0, within)
    elif costs is not None:
        kept = _by_cost(granularity, scores, sparsity, within, costs)
    elif request.least:
        kept = _with_floor(granularity, scores, sparsity, request.least, within or {}, packed or {})
    else:
        kept = {}
        for names, count in shares(scores, sparsity, request.scope):
            kept |= _keep(granularity, {name: scores[name] for name in names}, count, within)
    asked = Provenance(
        sparsity_asked=sparsity,
        scope=request.plain_scope,
        floor=request.least,
        granularity=str(granularity),
    )
    masks = Masks({name: kept[name] for name in scores}, asked)
    granularity.check_kept(masks.kept, sparsity)
    _warn_of_unused_sparsity(masks, request)
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
    """Groups with a floor of their own: layers, and parts of a packed weight with their biases."""
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
                f"floor={floor:g} asks for {max(need, kept - left):,} connections over "
                f"{len(floors)} layers, but sparsity {sparsity:g} keeps {kept:,}: lower one of "
                "them."
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
    """Least number of connections that a layer keeps; never more than it has left."""
    size = sum(scores[name].numel() for name in names)
    left = sum(left_in(name, scores[name], within) for name in names)
    return min(left, int(floor) if floor >= 1 else round(size * floor))


def _count(masks: Tensors, names: list[str]) -> int:
    """Number of connections that some parameters keep."""
    return sum(int(masks[name].count_nonzero()) for name in names)


def meets_floor(masks: Masks, floor: float, packed: Packed) -> bool:
    """True if each layer keeps its floor already, so that asking for it would change nothing."""
    groups, parts = _floor_groups(masks, packed), split(masks, packed)
    return all(
        _count(parts, names) >= _floor_of(names, parts, floor, None) for names in groups.values()
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


def _warn_of_unused_sparsity(masks: Masks, request: Request) -> None:
    """Warn if the scope sets every layer's sparsity, so that `sparsity` has no effect."""
    scope = request.scope
    if isinstance(scope, str):
        return
    if any(name not in scope and layer_name(name) not in scope for name in masks):
        return
    if abs(masks.kept - kept_count(masks.total, request.sparsity)) > len(masks):
        warn(
            f"scope gives every layer a sparsity of its own, {masks.sparsity:.4g} in all: the "
            f"sparsity={request.sparsity:g} asked for beside it has no effect.",
        )


def _check_within(scores: Mapping[str, torch.Tensor], within: Mapping[str, torch.Tensor]) -> None:
    """Refuse masks to stay inside that do not fit the scores."""
    for name, score in scores.items():
        mask = within.get(name)
        if mask is not None and (mask.dtype != torch.bool or mask.shape != score.shape):
            raise InputError(
                f"within[{name!r}] is {mask.dtype} {tuple(mask.shape)}: give a bool mask of the "
                f"scores' shape {tuple(score.shape)}."
            )


def _check_scores(scores: Mapping[str, torch.Tensor]) -> None:
    """Refuse scores that cannot be ranked."""
    if not isinstance(scores, Mapping) or not scores:
        raise KindError("scores must be a non-empty mapping from parameter name to tensor.")
    for name, score in scores.items():
        if not isinstance(score, torch.Tensor) or not score.is_floating_point():
            raise KindError(f"the scores of {name!r} are not a floating-point tensor.")
    with ranks_of_tensors(scores).raise_on_all():
        for name, score in scores.items():
            if not all_finite(local(score)):
                raise InputError(
                    f"the scores of {name!r} contain NaN or infinity: they cannot be ranked. "
                    "Look at the loss and at the gradients of this layer."
                )
