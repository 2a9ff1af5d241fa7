"""Masks that are guessed: of a model whose pruned weights are zero, and which holds no masks.

A weight that is zero here and there was pruned there. A tensor that is zero all over says nothing:
it may have been pruned away, or start at zero (a head, a bias) and have been saved before it was
trained. If it were taken for pruned it could never learn, so it is not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from snip.common.errors import InputError
from snip.common.text import listed
from snip.network.layout import is_weight

PRUNED = 0.1  # with fewer zeros than this a model was not pruned: some layers begin with zeros


def guessed(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The masks by name. A weight that is zero all over is kept whole, such a bias has no mask."""
    unsure = set(all_zero(parameters))
    found = {
        name: torch.ones(p.shape, dtype=torch.bool) if name in unsure else p.detach() != 0
        for name, p in parameters.items()
        if name not in unsure or is_weight(p.shape)
    }
    if not found:
        raise InputError(
            f"{listed(list(parameters))} are zero all over: which of them are pruned cannot be "
            "told. Load the masks (snip.Masks.load) and apply them."
        )
    return found


def all_zero(parameters: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors that are zero all over."""
    return [name for name, p in parameters.items() if p.numel() and not p.detach().any()]


def share_of_zeros(parameters: Mapping[str, torch.Tensor]) -> float:
    """How much of them is zero, tensors that are zero all over not counted."""
    unsure = set(all_zero(parameters))
    told = [p for name, p in parameters.items() if name not in unsure]
    total = sum(map(torch.numel, told))
    return 1 - sum(int(p.count_nonzero()) for p in told) / total if total else 0.0
