"""What a user should hear before training for hours: the warnings of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from snip.anatomy.packed import packed_parts
from snip.common.errors import listed
from snip.masks import empty_layers
from snip.paths.connectivity import Connectivity

# A report cannot try a cure, which takes the scores: `prune` does, and says what works.
FIX = (
    "prune again with scope='global' and floor='auto', which tries cures and says what works, or "
    "with a floor=... of your own"
)


def warnings_of(
    model: nn.Module, masks: Mapping[str, torch.Tensor], found: Connectivity
) -> tuple[str, ...]:
    """Collapse, empty layers, dead outputs, masks that are not applied; worst first."""
    known = found.reason is None
    return tuple(
        [
            *_collapse(found, known),
            *_empty_layers(model, masks, bypassed=known and found.connected),
            *_dead_outputs(found),
            *_not_applied(model, masks),
        ]
    )


def _collapse(found: Connectivity, known: bool) -> Iterator[str]:
    if known and not found.connected:
        yield (
            "no path leads from the input to the output: the network computes a constant and "
            f"cannot learn. To repair it, {FIX}."
        )


def _empty_layers(
    model: nn.Module, masks: Mapping[str, torch.Tensor], *, bypassed: bool
) -> Iterator[str]:
    empty = empty_layers(masks, packed_parts(model))
    if empty:
        how = "the signal passes by another way" if bypassed else "the signal may end there"
        yield f"nothing is left of {listed(empty)}: {how}. To keep some of it, {FIX}."


def _dead_outputs(found: Connectivity) -> Iterator[str]:
    if found.connected and found.dead_outputs:
        many = len(found.dead_outputs) > 1
        yield (
            f"output{'s' * many} {listed(found.dead_outputs)} of {found.outputs} "
            f"{'are' if many else 'is'} not reached by any input and can only be a constant: "
            f"if it is a class, it cannot be told apart. To repair it, {FIX}."
        )


def _not_applied(model: nn.Module, masks: Mapping[str, torch.Tensor]) -> Iterator[str]:
    alive = {
        name: int(torch.count_nonzero(parameter.detach()[~masks[name].to(parameter.device)]))
        for name, parameter in model.named_parameters()
        if name in masks
    }
    names = [name for name, count in alive.items() if count]
    if names:
        yield (
            f"{sum(alive.values()):,} pruned weights of {listed(names)} are not zero in this "
            "model: call masks.apply(model) to prune it."
        )
