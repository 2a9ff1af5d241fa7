"""After the selection: does the input still reach the outputs, and what would make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from snip.anatomy.calling import Call
from snip.anatomy.packed import packed_parts
from snip.anatomy.parameters import is_weight
from snip.common.errors import InputError, listed, warn
from snip.masks import Masks, empty_layers
from snip.paths.learned import LearnedOutputs
from snip.paths.reach import Follow, following

# Floors to try first: parts of what a layer would keep if all were equally sparse. They change
# little, and a tenth is often enough. Where outputs stay unreached, "erk" gives small layers more.
PARTS = (0.1, 0.3)
MORE = (2, 4, 8)  # if nothing else helps: so many times the connections, to name a sparsity
FEW = 8  # A layer is nearly empty with fewer connections, or fewer per this many outputs.

Select = Callable[..., Masks]  # the selection once more, with other settings
Cure = tuple[dict[str, Any], Masks]  # what a user would write, and the masks that it gives


def with_a_path(
    model: nn.Module,
    masks: Masks,
    call: Call | None,
    select: Select | None,
    *,
    repair: bool,
    batch_dim: int = 0,
    learned: LearnedOutputs | None = None,
) -> Masks:
    """The masks, or with `repair` others if no path is left; a warning says what was done.

    `call` is what the model was called with, `learned` knows on which outputs the loss depends, and
    `select(floor=...)` selects again. A network without a path computes a constant, and hours of
    training would be lost. It is repaired and not refused, because the repaired masks keep as many
    connections as were asked for, and a script that tries many sparsities goes on.
    Outputs that no input reaches are repaired if a floor reaches them all. Whoever chose a floor or
    a scope is told what would help. Every network is followed: layers that keep thousands of
    connections may still fail to meet.
    """
    if call is None:
        _warn_of_empty(model, masks, bypassed=False)
        return masks
    with following(model, call, batch_dim, learned) as follow:
        found = follow(masks)
        if found is None or found.reached == found.outputs:
            _warn_of_empty(model, masks, bypassed=found is not None)
            return masks
        unpruned = follow(Masks({name: torch.ones_like(mask) for name, mask in masks.items()}))
        wanted = 0 if unpruned is None else unpruned.reached
        if found.reached >= wanted:  # if none are wanted, the probe knows nothing of this model
            _warn_of_empty(model, masks, bypassed=wanted > 0)
            return masks
        better = _repaired(model, masks, _Search(follow, wanted, found.reached), select, repair)
    if better is masks and found.reached:
        _warn_of_empty(model, masks, bypassed=True)
    return better


def _repaired(
    model: nn.Module, masks: Masks, search: _Search, select: Select | None, repair: bool
) -> Masks:
    """The masks or, if that is allowed, those of a cure; a warning names only what was tried."""
    lost = f"{_left(model, masks)}, and no path leads from the input to the output: "
    cannot = "the network cannot learn. "
    if search.before:
        lost = (
            f"{search.wanted - search.before:,} of {search.wanted:,} outputs are not reached by "
            f"any input at sparsity {masks.sparsity:.4g} and can only be constants: "
        )
        cannot = "the network cannot learn them. "
    cure = search.among(_cures(masks, select))
    failed = "; ".join(search.failed)
    if cure is None:
        warn(f"{lost}{cannot}{f'Tried in vain: {failed}.' * bool(failed)}")
        return masks
    settings, other = cure
    some = bool(search.before) or search.most < search.wanted
    to = f" to {search.most:,} of {search.wanted:,} outputs" if some else ""
    # An output more or less is no reason to leave the ranking that was asked for altogether.
    if repair and "sparsity" not in settings and (not search.before or "floor" in settings):
        warn(
            f"{lost}pruned with {_written(settings)} instead, which leaves as many connections and "
            f"a path{to}. floor=0 prunes without this."
        )
        return other
    also = f", with one{to}" if some else ""
    vain = f" ({failed} in vain)" if failed else ""
    warn(f"{lost}{cannot}{_written(settings)} leaves a path: it was tried{also}{vain}.")
    return masks


class _Search:
    """Looks for masks with which the input reaches all outputs that it reaches in the model."""

    def __init__(self, follow: Follow, wanted: int, before: int) -> None:
        self.follow, self.wanted, self.before = follow, wanted, before
        self.most = 0  # how many outputs the best masks reach
        self.failed: list[str] = []  # what did not help, as a user would write it

    def among(self, cures: Iterator[Cure]) -> Cure | None:
        """The first that reaches all. If no output was reached before, else that with the most."""
        best = None
        for cure in cures:
            # More connections are only tried where the network would be worth nothing without.
            if "sparsity" in cure[0] and (best is not None or self.before):
                break
            found = self.follow(cure[1])
            reached = 0 if found is None else found.reached
            if reached >= self.wanted or (reached > self.most and not self.before):
                best, self.most = cure, reached
            else:
                self.failed.append(_written(cure[0]))
            if reached >= self.wanted:
                break
        return best


def _cures(masks: Masks, select: Select | None) -> Iterator[Cure]:
    """Other selections, each with its settings: of as many connections, then of more."""
    if select is None:
        return
    asked = masks.provenance
    density = 1 - masks.sparsity
    floors = [float(f"{part * density:.1g}") for part in PARTS]  # to be written down
    ranked = {} if asked.scope == "global" else {"scope": "global"}
    settings: list[dict[str, Any]] = [{**ranked, "floor": floor} for floor in floors]
    settings += [] if asked.scope == "erk" else [{"scope": "erk", "floor": 0}]
    least = 1 - (asked.sparsity_asked or masks.sparsity)
    settings += [
        {"sparsity": float(f"{1 - least * more:.3g}")} for more in MORE if least * more < 1
    ]
    for setting in settings:
        # A model that is pruned already may have too little left, and a cost budget has no floors.
        with suppress(InputError):
            yield {k: v for k, v in setting.items() if v != 0}, select(**setting)


def _written(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _nearly_empty(masks: Masks) -> list[str]:
    """Weights that keep so little that a path may end there."""
    weights = {name: mask for name, mask in masks.items() if is_weight(mask.shape)}
    few = {name: max(FEW, len(mask) // FEW) for name, mask in weights.items()}
    return [
        name
        for name, least in few.items()
        if int(masks[name].count_nonzero()) < min(masks[name].numel(), least)
    ]


def _warn_of_empty(model: nn.Module, masks: Masks, *, bypassed: bool) -> None:
    if empty_layers(masks, packed_parts(model)):
        how = "passes by another way" if bypassed else "ends there unless a shortcut passes it by"
        warn(
            f"{_left(model, masks)}: the signal {how}. scope='global' with a floor=... keeps some "
            "of every layer."
        )


def _left(model: nn.Module, masks: Masks) -> str:
    empty, few = empty_layers(masks, packed_parts(model)), _nearly_empty(masks)
    what = "some is left of every layer"
    if empty or few:
        much = "nothing" if empty else "too little"
        what = f"{much} is left of {listed(empty or few)}"
    return f"{what} at sparsity {masks.sparsity:.4g}"
