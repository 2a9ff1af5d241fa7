"""Which units of a layer still have a connection: neurons, channels, hidden units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from snip.distributed.wrappers import unwrap
from snip.network.normed import attribute_names
from snip.network.parameters import is_conv1d, is_weight, parameter_owners


@dataclass(frozen=True)
class LiveUnits:
    """True where a unit on that side of a weight has a connection."""

    outputs: torch.Tensor
    inputs: torch.Tensor


def live_units(model: nn.Module, masks: Mapping[str, torch.Tensor]) -> dict[str, LiveUnits]:
    """Live units per weight; with effective masks, those that lie on a path.

    A recurrent layer's hidden unit counts once for all its gates, and is alive if its input or
    its recurrent weights are: `weight_ih*` and `weight_hh*` then say the same of their outputs.
    """
    model = unwrap(model)
    owners, keys = parameter_owners(model), attribute_names(model)
    placed = {(owners[name][0][1], keys[name]): mask for name, mask in masks.items()}
    return {
        name: _live(owners[name][0][1], keys[name], mask, placed)
        for name, mask in masks.items()
        if is_weight(mask.shape)
    }


def _live(
    module: nn.Module,
    key: str,
    mask: torch.Tensor,
    placed: Mapping[tuple[nn.Module, str], torch.Tensor],
) -> LiveUnits:
    inputs = _any_but(mask, 1)
    if isinstance(module, _ConvTransposeNd):  # [in, out / groups, ...]
        return LiveUnits(_second_of_groups(mask, module.groups), _any_but(mask, 0))
    if is_conv1d(module):  # [in, out]
        return LiveUnits(inputs, _any_but(mask, 0))
    if isinstance(module, _ConvNd):  # [out, in / groups, ...]
        return LiveUnits(_any_but(mask, 0), _second_of_groups(mask, module.groups))
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)) and key.startswith(
        ("weight_ih", "weight_hh")
    ):
        end = key[len("weight_ih") :]
        both = [placed.get((module, f"weight_{kind}{end}")) for kind in ("ih", "hh")]
        rows = torch.stack([_any_but(part, 0) for part in both if part is not None]).any(0)
        return LiveUnits(rows.view(-1, module.hidden_size).any(0), inputs)
    return LiveUnits(_any_but(mask, 0), inputs)


def output_rows(module: nn.Module, shape: Sequence[int]) -> int:
    """Number of outputs of a layer with a weight of this shape, the gates of each unit apart."""
    if isinstance(module, _ConvTransposeNd):  # [in, out / groups, ...]
        return shape[1] * module.groups
    return shape[1] if is_conv1d(module) else shape[0]


def _any_but(mask: torch.Tensor, dim: int) -> torch.Tensor:
    return mask.transpose(0, dim).flatten(1).any(1)


def _second_of_groups(mask: torch.Tensor, groups: int) -> torch.Tensor:
    """Of a weight [a, b / groups, ...], which of the b have a connection."""
    return mask.reshape(groups, -1, mask.shape[1], mask[0, 0].numel()).any(3).any(1).flatten()
