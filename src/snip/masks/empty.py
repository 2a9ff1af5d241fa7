"""Layers of which masks leave nothing, or so little that a path may end there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from snip.network.layout import Packed, is_weight, split
from snip.network.network import Network

FEW = 8  # A layer is nearly empty with fewer connections, or fewer per this many outputs.


def empty_layers(masks: Mapping[str, torch.Tensor], packed: Packed | None = None) -> list[str]:
    """Names of the weights that keep no connection. A layer works on without its bias.

    Of a weight that holds several layers (`packed_parts`), the parts that keep none.
    """
    found: list[str] = []
    for name, mask in masks.items():
        if is_weight(mask.shape):
            parts = split({name: mask}, packed or {})
            # numpy stops at the first that is kept.
            empty = [part for part, piece in parts.items() if not piece.cpu().numpy().any()]
            found += [name] if len(empty) == len(parts) else empty
    return found


def nearly_empty_layers(model: nn.Module, masks: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the weights that keep so little that a path may end there."""
    parameters = Network.of(model).parameters
    few = {
        name: max(FEW, parameters[name].layout.rows(mask.shape) // FEW)
        for name, mask in masks.items()
        if is_weight(mask.shape)
    }
    return [
        name
        for name, least in few.items()
        if int(masks[name].count_nonzero()) < min(masks[name].numel(), least)
    ]
