"""The price of a connection in FLOPs, from how often a forward uses each weight (`Seen.uses`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from snip.common.errors import InputError


def flops_per_element(shape: torch.Size | tuple[int, ...], uses: float) -> float:
    """FLOPs per sample of one element: a weight multiplies and adds, a bias only adds."""
    return (2.0 if len(shape) > 1 else 1.0) * uses


def element_flops(
    tensors: Mapping[str, torch.Tensor], uses: Mapping[str, float]
) -> dict[str, float]:
    """FLOPs per sample of one element of each tensor."""
    for name in tensors:
        if not uses.get(name):
            raise InputError(
                f"the FLOPs of {name!r} are unknown: its layer was not seen at work in the model's "
                "own forward. Call model(...) in loss_fn, or leave it out with params=..."
            )
    return {name: flops_per_element(t.shape, uses[name]) for name, t in tensors.items()}


def flops(kept: Mapping[str, torch.Tensor], uses: Mapping[str, float]) -> float:
    """FLOPs per sample of the True elements, in the layers that `uses` knows."""
    return sum(
        int(mask.count_nonzero()) * flops_per_element(mask.shape, uses[name])
        for name, mask in kept.items()
        if name in uses
    )
