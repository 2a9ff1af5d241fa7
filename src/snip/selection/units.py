"""Whole units. A connection is kept if the unit that it makes and the unit that it reads are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from snip.anatomy.parameters import is_weight
from snip.common.errors import InputError, listed, warn
from snip.selection.digits import Cost
from snip.selection.granularity import Channel
from snip.selection.groups import Tensors, best_groups
from snip.selection.topk import keep_top
from snip.units.coupled import CoupledUnits

Tensor = torch.Tensor


def keep_units(
    channel: Channel,
    scores: Tensors,
    budget: Cost,
    within: Tensors | None,
    costs: Mapping[str, Cost] | None,
) -> dict[str, Tensor]:
    """The best units of each layer, the same share of each, as many as the budget pays for.

    A unit's score is that of all connections that go with it, those that make it and those that
    read it. Units of different layers are not compared by it, because wide layers would lose all
    but one unit: six layers of VGG-16 at a sparsity of 0.9, whether sums or means are compared.
    In each layer the best unit stays in any case: without one, nothing would pass.
    """
    units = _units(channel, scores)
    prices = {name: costs[name] if costs else 1 for name in scores}
    left = {
        name: (within or {}).get(name, torch.ones(score.shape, dtype=torch.bool)).cpu()
        for name, score in scores.items()
    }
    alive = units.sums(left) > 0
    sums = units.sums({n: s.where(left[n].to(s.device), 0) for n, s in scores.items()})
    ranked = _places(sums, units.spaces(), alive)
    stays = units.fixed | _best_of_each(units, ranked, alive)

    def kept(chosen: Tensor) -> dict[str, Tensor]:
        return {n: units.mask(n, mask.shape, stays | chosen) & mask for n, mask in left.items()}

    def spent(groups: Tensors) -> Cost:
        found = kept(groups["units"])
        return sum(prices[name] * int(mask.count_nonzero()) for name, mask in found.items())

    least = spent({"units": stays})
    if least > budget:
        total = sum(prices[name] * score.numel() for name, score in scores.items())
        raise InputError(
            f"granularity 'channel' cannot remove so much: with one unit in each layer, and all "
            f"units that cannot be taken out, {float(least / total):.3%} stays. Ask for a sparsity "
            f"of at most {float(1 - least / total):.6g}."
        )
    competing = {"units": alive & ~stays}
    return kept(best_groups({"units": ranked}, spent, budget, competing)["units"])


def _units(channel: Channel, scores: Tensors) -> CoupledUnits:
    """The units of the network that was scored; weights about which none decides are told."""
    units = channel.units
    if units is None:
        raise InputError(
            "granularity 'channel' must know which layer reads which units: give "
            "snip.Channel().on(model, batch), or call snip.prune, which does so."
        )
    whole = [
        name for name, score in scores.items() if is_weight(score.shape) and not units.decide(name)
    ]
    if whole:
        warn(
            f"granularity 'channel' leaves {listed(whole)} whole: their units cannot be followed, "
            "or they are read by what cannot be cut."
        )
    return units


def _places(sums: Tensor, spaces: Tensor, alive: Tensor) -> Tensor:
    """How good a unit is among those of its space that are alive, from 1 for the best down to 0.

    So the best of a tenth of each space are better than all others.
    """
    places = torch.zeros_like(sums)
    for space in spaces.unique():
        members = torch.nonzero((spaces == space) & alive).flatten()
        order = sums[members].sort(descending=True, stable=True).indices
        places[members[order]] = 1 - torch.arange(len(order)).double() / max(1, len(order))
    return places


def _best_of_each(units: CoupledUnits, ranked: Tensor, alive: Tensor) -> Tensor:
    """True for the best unit of each layer in which none stays in any case."""
    stays = torch.zeros_like(units.fixed)
    for made in units.layers.values():
        if not (units.fixed | stays)[made].any():
            best = keep_top({"units": ranked[made]}, 1, {"units": alive[made]})["units"]
            stays[made[best]] = True
    return stays
