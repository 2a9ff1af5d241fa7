"""After the selection: is a path left from input to output, and what would leave one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import torch
from torch import nn

from snip.anatomy.calling import Call
from snip.common.errors import InputError, SnipWarning, listed
from snip.masks import Masks, empty_layers
from snip.paths.connectivity import Connectivity, reached_outputs

# What every layer keeps at least, as a part of what it would keep if all were equally sparse.
# A tenth brought every path of the zoo back (bench/defaults.py); the others are for the rest.
PARTS = (0.1, 0.3, 0.9)
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
    """The masks, or with `repair` others with a floor if no path is left; a warning says which.

    `call` is what the model was called with, `select(floor=...)` selects again. A network without
    a path computes a constant, and hours of training would be lost. It is repaired and not
    refused, because the repaired masks keep as many connections as were asked for, and a script
    that tries many sparsities goes on. Whoever chose the floor is told what would help.
    """
    if call is None or not _nearly_empty(masks):
        _warn(_nothing_left(masks, bypassed=False))
        return masks
    found = reached_outputs(model, masks, call, batch_dim)
    if found.connected or not _follows(model, masks, call, batch_dim, found):
        _warn(_nothing_left(masks, bypassed=found.connected))
        return masks
    for floor, other in _with_floors(masks, select):
        if reached_outputs(model, other, call, batch_dim).connected:
            _warn(_lost(masks) + (_done(floor) if repair else _cure(floor)))
            return other if repair else masks
    _warn(f"{_lost(masks)}the network cannot learn. Use floor=..., {OTHERS}.")
    return masks


def _nearly_empty(masks: Masks) -> list[str]:
    """Weights with fewer connections than outputs. Without any, no path is lost: not probed."""
    return [name for name, mask in masks.items() if mask.ndim > 1 and mask.sum() < len(mask)]


def _follows(
    model: nn.Module, masks: Masks, call: Call, batch_dim: int, found: Connectivity
) -> bool:
    """Whether the lost path is a fact: the probe can follow this model and finds one unpruned."""
    if found.reason is not None:
        return False
    whole = Masks({name: torch.ones_like(mask) for name, mask in masks.items()})
    return reached_outputs(model, whole, call, batch_dim).connected


def _with_floors(
    masks: Masks, select: Callable[..., Masks] | None
) -> Iterator[tuple[float, Masks]]:
    """Other selections of as many connections, with higher and higher floors."""
    if select is None:
        return
    for part in PARTS:
        floor = float(f"{part * (1 - masks.sparsity):.1g}")  # short enough to be written down
        try:
            yield floor, select(floor=floor)
        except InputError:  # the floors ask for more than may stay
            return


def _nothing_left(masks: Masks, *, bypassed: bool) -> str:
    empty = empty_layers(masks)
    if not empty:
        return ""
    how = "passes by another way" if bypassed else "ends there unless a shortcut passes it by"
    return f"{_left(masks)}: the signal {how}. To keep some of it, use floor=..., {OTHERS}."


def _left(masks: Masks) -> str:
    empty, few = empty_layers(masks), _nearly_empty(masks)
    what = (
        f"nothing is left of {listed(empty)}" if empty else f"too little is left of {listed(few)}"
    )
    return f"{what} at sparsity {masks.sparsity:.4g}"


def _lost(masks: Masks) -> str:
    return f"{_left(masks)}, and no path leads from the input to the output: "


def _done(floor: float) -> str:
    return (
        f"every layer keeps at least {floor:.4%} instead (floor={floor:g}), at the same sparsity "
        "in all, and there is a path again. floor=0 prunes without this."
    )


def _cure(floor: float) -> str:
    return f"the network cannot learn. floor={floor:g} leaves a path: it was tried."


def _warn(sentence: str) -> None:
    if sentence:
        warnings.warn(sentence, SnipWarning, stacklevel=4)
