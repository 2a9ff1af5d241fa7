"""What a user should hear before training for hours: the warnings of a report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn

from snip.common.text import listed
from snip.masks import Masks, empty_layers
from snip.network.network import Network
from snip.network.paths import Paths
from snip.selection.budgets import OWN

ENOUGH = 0.3  # of what a layer would keep if all were equally sparse: a floor to name


def warnings_of(
    model: nn.Module, masks: Masks, paths: Paths, cut: Sequence[str]
) -> tuple[str, ...]:
    """Collapse, empty layers, dead outputs, masks that are not applied; worst first."""
    fix = _fix(masks)
    return tuple(
        [
            *_collapse(paths, fix),
            *_empty_layers(model, masks, cut, bool(paths.connected), fix),
            *_dead_outputs(paths, fix),
            *_not_applied(model, masks),
        ]
    )


def _fix(masks: Masks) -> str:
    """Suggest a setting. Only `prune` has the scores to try it."""
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


def _collapse(paths: Paths, fix: str) -> Iterator[str]:
    if paths.connected is False:
        yield (
            "no path leads from the input to the output: the network computes a constant and "
            f"cannot learn. To repair it, {fix}."
        )


def _empty_layers(
    model: nn.Module, masks: Masks, cut: Sequence[str], bypassed: bool, fix: str
) -> Iterator[str]:
    empty = empty_layers(masks, Network.of(model).packed)
    if empty:
        how = "the signal passes by another way" if bypassed else "the signal may end there"
        if cut:
            many = "s" * (len(cut) > 1)
            how = f"nothing of the input{many} {listed(cut)} reaches the output"
        yield f"nothing is left of {listed(empty)}: {how}. To keep some of it, {fix}."


def _dead_outputs(paths: Paths, fix: str) -> Iterator[str]:
    if paths.connected and paths.dead_outputs:
        many = len(paths.dead_outputs) > 1
        yield (
            f"output{'s' * many} {listed(paths.dead_outputs)} of {paths.outputs} "
            f"{'are' if many else 'is'} not reached by any input and can only be a constant: "
            f"if it is a class, it cannot be told apart. To repair it, {fix}."
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
