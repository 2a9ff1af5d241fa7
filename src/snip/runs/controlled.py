"""Pruning for a run, by its method or by a sanity control of it."""

from __future__ import annotations

from typing import Any

from torch import nn

from snip.algorithm import prune
from snip.masks import Masks
from snip.methods.controls import INVERT, NONE, OF_MASKS, inverted
from snip.network.calls import copy_of, example
from snip.selection.granularity import checked_granularity


def prune_controlled(
    model: nn.Module, batches: list[Any], *, method: str, control: str, **settings: Any
) -> Masks:
    """What `snip.prune` does, or what the named control makes of it, whole units as whole units."""
    if control == NONE:
        return prune(model, batches, method=method, **settings)
    if control == INVERT:
        masks = prune(model, batches, method=inverted(method), **settings)
        masks = masks.with_provenance(method=method, control=control)
    else:
        # The control keeps connections that the method removes: their weights must not be zero.
        masks = prune(copy_of(model), batches, method=method, **settings)
        whole = checked_granularity(settings["granularity"]).on(model, example(model, batches[0]))
        masks = OF_MASKS[control](masks, whole, model)
    masks.apply(model)
    return masks
