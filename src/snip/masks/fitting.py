"""Whether masks fit a model: the same names and shapes, and nothing that would become NaN."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from snip.common.errors import InputError, nearest
from snip.distributed.shards import check_split
from snip.network.norms import NormedWeight, normed_weights
from snip.network.parameters import ordinary


def check_fit(masks: Mapping[str, torch.Tensor], model: nn.Module) -> None:
    """Raise unless `model` has a parameter of the same name and shape for every mask."""
    model = ordinary(model)
    parameters = dict(model.named_parameters())
    for name, mask in masks.items():
        if name not in parameters:
            missing = nearest("parameter", name, parameters)
            raise InputError(f"these masks are of another model: {missing}")
        if parameters[name].shape != mask.shape:
            raise InputError(
                f"these masks are of another model: {name!r} has shape "
                f"{tuple(parameters[name].shape)} there and {tuple(mask.shape)} here."
            )
        check_split(name, parameters[name])
    for name, normed in normed_weights(model).items():
        if name in masks:
            _check_lengths(name, normed.parts(masks[name]))


def _check_lengths(name: str, parts: torch.Tensor) -> None:
    """Refuse to empty a part of a weight that is divided by its length: 0 / 0 is NaN."""
    empty = int((~parts.any(1)).sum()) if parts.numel() else 0
    if empty:
        raise InputError(
            f"{name!r} is divided by the length of each of its {len(parts):,} parts (weight norm "
            f"or spectral norm), and {empty:,} of them would keep no connection: the network would "
            "compute NaN. snip.prune keeps one in each if its sparsity and scope leave room for "
            "them: ask for a lower sparsity, leave this one out with params=..., or remove the "
            "norm first."
        )


def changed_by(masks: Mapping[str, torch.Tensor], model: nn.Module) -> list[NormedWeight]:
    """The weights under a norm from which the masks would take connections that are there."""
    return [
        normed
        for name, normed in normed_weights(model).items()
        if name in masks and _has_any(normed.stored.detach(), ~masks[name])
    ]


def _has_any(weight: torch.Tensor, places: torch.Tensor) -> bool:
    """True if a weight is not zero all over at the places that are True."""
    return bool(weight[places.to(weight.device)].any())
