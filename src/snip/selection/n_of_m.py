"""n of every m consecutive inputs of a unit: the rule of GPUs' sparse matrix products.

The inputs of a convolution are its input channels, at each position of its kernel: with the
channels last, as GPUs compute it, its weight is a matrix [outputs, positions x inputs] whose rows
fall into such groups.
"""

from __future__ import annotations

import torch

from snip.anatomy.parameters import is_weight
from snip.common.errors import InputError, listed, warn
from snip.selection.granularity import NofM
from snip.selection.groups import Tensors

Tensor = torch.Tensor


def keep_n_of_m(pattern: NofM, scores: Tensors, within: Tensors | None) -> dict[str, Tensor]:
    """The n best of every m inputs, the first among equals; of a group pruned before, what is left.

    Biases stay, and so do weights that do not divide, because the first layer of nearly every
    network is one: a picture has three channels.
    """
    weights = [name for name, score in scores.items() if is_weight(score.shape)]
    whole = [name for name in weights if not follows(pattern, name, scores[name])]
    if len(whole) == len(weights):
        raise InputError(
            f"no weight has a number of inputs that divides by {pattern.m}: granularity "
            f"'{pattern}' would remove nothing."
        )
    if whole:
        warn(
            f"granularity '{pattern}' leaves {listed(whole)} as before: the number of inputs does "
            f"not divide by {pattern.m}."
        )
    found = {}
    for name, score in scores.items():
        mask = (within or {}).get(name, torch.ones(score.shape, dtype=torch.bool)).cpu()
        follow = follows(pattern, name, score)
        found[name] = _kept(pattern, name, score, mask) if follow else mask.clone()
    return found


def follows(pattern: NofM, name: str, weight: Tensor) -> bool:
    """Whether a weight, or its mask, can follow the pattern."""
    return (
        weight.numel() > 0
        and len(weight.shape) > 1
        and not inputs_last(pattern, name, weight).shape[-1] % pattern.m
    )


def inputs_last(pattern: NofM, name: str, weight: Tensor) -> Tensor:
    """A weight, or its mask, as a view [..., inputs]."""
    return weight.movedim(0 if name in pattern.turned else 1, -1)


def _kept(pattern: NofM, name: str, score: Tensor, left: Tensor) -> Tensor:
    """The mask of one weight."""
    lowest = torch.finfo(score.dtype).min  # scores are finite; what is gone must not win
    competing = inputs_last(pattern, name, score.where(left.to(score.device), lowest))
    groups = competing.reshape(-1, pattern.m)
    # A stable sort keeps the first position among equals first.
    best = groups.sort(dim=1, descending=True, stable=True).indices[:, : pattern.n]
    wins = torch.zeros(groups.shape, dtype=torch.bool, device=score.device).scatter_(1, best, True)
    mask = torch.empty_like(left)
    inputs_last(pattern, name, mask).copy_(wins.view(competing.shape))
    return mask & left
