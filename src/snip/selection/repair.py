"""After the selection: is a path left from input to output, and what would leave one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from snip.anatomy.calling import Call
from snip.anatomy.parameters import is_weight
from snip.common.errors import InputError, listed, warn
from snip.masks import Masks, empty_layers
from snip.paths.connectivity import has_path, reached_outputs

# Floors to try first: parts of what a layer would keep if all were equally sparse. They change
# little, and a tenth is often enough. Where outputs stay unreached, "erk" gives small layers more.
PARTS = (0.1, 0.3)
FEW = 8  # A layer is nearly empty with fewer connections, or fewer per this many outputs.
OTHERS = "another scope ('erk', 'layer'), more scoring data, or a lower sparsity"


def with_a_path(
    model: nn.Module,
    masks: Masks,
    call: Call | None,
    select: Callable[..., Masks] | None,
    *,
    repair: bool,
    batch_dim: int = 0,
) -> Masks:
    """The masks, or with `repair` others if no path is left; a warning says what was done.

    `call` is what the model was called with; `select(floor=...)` selects again. A network without
    a path computes a constant, and hours of training would be lost. It is repaired and not
    refused, because the repaired masks keep as many connections as were asked for, and a script
    that tries many sparsities goes on. Whoever chose the floor is told what would help.
    """
    if not _nearly_empty(masks):
        return masks
    found = None if call is None else has_path(model, masks, call, batch_dim)
    if call is None or found is not False:
        _warn_of_empty(masks, bypassed=bool(found))
        return masks
    reached = partial(reached_outputs, model, call=call, batch_dim=batch_dim)
    wanted = reached(_unpruned(masks))
    if not wanted:  # not even through the unpruned model: the probe knows nothing of this one
        _warn_of_empty(masks, bypassed=False)
        return masks
    cure, other = _cured(masks, select, reached, wanted)
    if other is None:
        warn(f"{_lost(masks)}the network cannot learn. Use floor=..., {OTHERS}.")
        return masks
    warn(_lost(masks) + (_done(cure) if repair else _would_help(cure)))
    return other if repair else masks


def _cured(
    masks: Masks,
    select: Callable[..., Masks] | None,
    reached: Callable[[Masks], int],
    wanted: int,
) -> tuple[str, Masks | None]:
    """The first cure that reaches all wanted outputs, or else the most; None if none does."""
    best: tuple[str, Masks | None] = ("", None)
    most = 0
    for cure, other in _cures(masks, select):
        count = reached(other)
        if count > most:
            best, most = (cure, other), count
        if count >= wanted:
            break
    return best


def _nearly_empty(masks: Masks) -> list[str]:
    """Weights that keep so little that a path may end there. Without any, nobody looks for one."""
    weights = {name: mask for name, mask in masks.items() if is_weight(mask.shape)}
    few = {name: max(FEW, len(mask) // FEW) for name, mask in weights.items()}
    # Counting is many times faster than summing what is not a number.
    return [
        name
        for name, least in few.items()
        if int(masks[name].count_nonzero()) < min(masks[name].numel(), least)
    ]


def _unpruned(masks: Masks) -> Masks:
    return Masks({name: torch.ones_like(mask) for name, mask in masks.items()})


def _cures(masks: Masks, select: Callable[..., Masks] | None) -> Iterator[tuple[str, Masks]]:
    """Other selections of as many connections, each with what a user would write to get it."""
    if select is None:
        return
    floors = [float(f"{part * (1 - masks.sparsity):.1g}") for part in PARTS]  # to be written down
    for settings in ({"floor": floors[0]}, {"floor": floors[1]}, {"scope": "erk"}):
        # A model that is pruned already may have too little left in a layer.
        with suppress(InputError):
            yield ", ".join(f"{k}={v!r}" for k, v in settings.items()), select(**settings)


def _warn_of_empty(masks: Masks, *, bypassed: bool) -> None:
    if empty_layers(masks):
        how = "passes by another way" if bypassed else "ends there unless a shortcut passes it by"
        warn(f"{_left(masks)}: the signal {how}. To keep some of it, use floor=..., {OTHERS}.")


def _left(masks: Masks) -> str:
    empty, few = empty_layers(masks), _nearly_empty(masks)
    what = (
        f"nothing is left of {listed(empty)}" if empty else f"too little is left of {listed(few)}"
    )
    return f"{what} at sparsity {masks.sparsity:.4g}"


def _lost(masks: Masks) -> str:
    return f"{_left(masks)}, and no path leads from the input to the output: "


def _done(cure: str) -> str:
    return (
        f"pruned with {cure} instead, which leaves as many connections and a path. "
        "floor=0 prunes without this."
    )


def _would_help(cure: str) -> str:
    return f"the network cannot learn. {cure} leaves a path: it was tried."
