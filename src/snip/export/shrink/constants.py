"""The constants of removed units, moved into the biases of the layers that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from snip.export.shrink.needs import Needs
from snip.export.shrink.network import Layer, Network

Tensor = torch.Tensor


def contributions(network: Network, needs: Needs) -> dict[str, Tensor]:
    """Name of a bias -> what removed units add to each of its entries, where it is not zero."""
    found = {}
    for layer in network.layers:
        delta = _delta(layer, needs)
        if delta is not None and delta.any():
            found[f"{layer.name}.{_bias_key(layer.module)}"] = delta
    return found


def fold(model: nn.Module, deltas: Mapping[str, Tensor]) -> list[str]:
    """Add the contributions to `model`; returns the biases that had to be made for it."""
    made = []
    for name, delta in deltas.items():
        owner, _, key = name.rpartition(".")
        module: Any = model.get_submodule(owner)
        if getattr(module, key) is None:
            add_bias(module)
            made.append(name)
        bias = getattr(module, key)
        with torch.no_grad():
            bias.copy_(bias.detach().cpu().double() + delta)
    return made


def add_bias(module: Any) -> None:
    """Give a layer without bias one of zeros."""
    outputs = module.weight.shape[1 if isinstance(module, _ConvTransposeNd) else 0]
    module.bias = nn.Parameter(
        module.weight.new_zeros(outputs), requires_grad=module.weight.requires_grad
    )


def _delta(layer: Layer, needs: Needs) -> Tensor | None:
    source = layer.source
    if source is None or getattr(layer.module, "groups", 1) > 1:
        return None
    gone = source.constant & source.uniform & ~needs.of(source.units) & (source.value != 0)
    weight = _matrix(layer.module)
    delta = weight[:, gone] @ source.value[gone]
    rows = needs.of(layer.result.units)
    return delta * rows.repeat(len(delta) // len(rows))


def _matrix(module: Any) -> Tensor:
    """[rows, columns]: what a uniform input is multiplied by."""
    own: Any = module.weight_ih_l0 if isinstance(module, nn.RNNBase) else module.weight
    weight: Tensor = own.detach().cpu().double()
    if isinstance(module, _ConvTransposeNd):
        weight = weight.transpose(0, 1)
    return weight.flatten(2).sum(2) if weight.ndim > 2 else weight


def _bias_key(module: nn.Module) -> str:
    return "bias_ih_l0" if isinstance(module, nn.RNNBase) else "bias"
