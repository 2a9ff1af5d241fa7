"""The constants of removed units, moved into the biases of the layers that read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from snip.export.shrink.flow import Flow
from snip.export.shrink.ledger import Layer, Ledger
from snip.export.shrink.needs import Needs

Tensor = torch.Tensor


def contributions(ledger: Ledger, needs: Needs) -> dict[str, Tensor]:
    """Name of a bias -> what removed units add to each of its entries, where it is not zero."""
    found = {}
    for layer in ledger.layers:
        if layer.source is None or getattr(layer.module, "groups", 1) > 1:
            continue
        delta = _delta(layer, layer.source, needs)
        if delta.any():
            key = "bias_ih_l0" if isinstance(layer.module, nn.RNNBase) else "bias"
            found[f"{layer.name}.{key}"] = delta
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
    zeros = module.weight.new_zeros(outputs)
    module.bias = nn.Parameter(zeros, requires_grad=module.weight.requires_grad)


def _delta(layer: Layer, source: Flow, needs: Needs) -> Tensor:
    """What the units that go add to each row of a layer that stays."""
    module: Any = layer.module
    weight: Any = module.weight_ih_l0 if isinstance(module, nn.RNNBase) else module.weight
    matrix: Tensor = weight.detach().cpu().double()
    matrix = matrix.transpose(0, 1) if isinstance(module, _ConvTransposeNd) else matrix
    # A uniform input is multiplied by the sum over a kernel's positions.
    matrix = matrix.flatten(2).sum(2) if matrix.ndim > 2 else matrix
    gone = source.even & ~needs.of(source.units)
    rows = needs.of(layer.result.units)
    return (matrix[:, gone] @ source.value[gone]) * rows.repeat(len(matrix) // len(rows))
