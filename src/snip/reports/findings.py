"""What a user should hear before training for hours: the warnings of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import nn

from snip.common.text import listed
from snip.masks import Masks, empty_layers
from snip.network.network import Network
from snip.paths.connectivity import Connectivity
from snip.selection.budgets import OWN

ENOUGH = 0.3  # of what a layer would keep if all were equally sparse: a floor to name


def warnings_of(model: nn.Module, masks: Masks, found: Connectivity) -> tuple[str, ...]:
    """Collapse, empty layers, dead outputs, masks that are not applied; worst first."""
    known = found.reason is None or found.reached is not None
    fix = _fix(masks)
    return tuple(
        [
            *_collapse(found, known, fix),
            *_empty_layers(model, masks, found.cut_inputs, known and found.connected, fix),
            *_dead_outputs(found, fix),
            *_not_applied(model, masks),
        ]
    )


def _fix(masks: Masks) -> str:
    """What to try. A report cannot try it, which takes the scores: `prune` does."""
    asked = masks.provenance
    if asked.scope == OWN:
        return "prune again with a lower sparsity or by another method"
    if asked.budget == "flops":
        return "prune again with a lower sparsity or with budget='connections'"
    if asked.scope == "global":  # floor="auto" may have been asked for, and have found no cure
        floor = float(f"{ENOUGH * (1 - masks.sparsity):.1g}")
        higher = floor if floor > (asked.floor or 0) else 2 * (asked.floor or 0)
        return f"prune again with floor={higher:g}, with scope='erk' or with a lower sparsity"
    return (
        "prune again with scope='global' and floor='auto', which tries cures and says what works, "
        "or with a floor=... of your own"
    )


def _collapse(found: Connectivity, known: bool, fix: str) -> Iterator[str]:
    if known and not found.connected:
        yield (
            "no path leads from the input to the output: the network computes a constant and "
            f"cannot learn. To repair it, {fix}."
        )


def _empty_layers(
    model: nn.Module, masks: Masks, cut: tuple[str, ...], bypassed: bool, fix: str
) -> Iterator[str]:
    empty = empty_layers(masks, Network.of(model).packed)
    if empty:
        how = "the signal passes by another way" if bypassed else "the signal may end there"
        if cut:
            many = "s" * (len(cut) > 1)
            how = f"nothing of the input{many} {listed(cut)} reaches the output"
        yield f"nothing is left of {listed(empty)}: {how}. To keep some of it, {fix}."


def _dead_outputs(found: Connectivity, fix: str) -> Iterator[str]:
    if found.connected and found.dead_outputs:
        many = len(found.dead_outputs) > 1
        yield (
            f"output{'s' * many} {listed(found.dead_outputs)} of {found.outputs} "
            f"{'are' if many else 'is'} not reached by any input and can only be a constant: "
            f"if it is a class, it cannot be told apart. To repair it, {fix}."
        )
    reached, wanted = found.reached or (0, 0)
    if 0 < reached < wanted:
        yield (
            f"{wanted - reached:,} of {wanted:,} outputs are not reached by any input and can only "
            f"be constants. To repair it, {fix}."
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
