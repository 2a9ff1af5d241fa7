"""What following a network finds: its layers, who reads which units, and what must stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from snip.export.shrink.flow import Flow, Identities

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Layer:
    """A module whose tensors are cut when units go."""

    name: str
    module: Any
    source: Flow | None  # what it reads; None if that cannot be cut or is cut with the outputs
    result: Flow

    @property
    def makes_units(self) -> bool:
        """Whether the units begin here (a norm only passes them on)."""
        return not isinstance(self.module, nn.modules.batchnorm._BatchNorm)


@dataclass(frozen=True, eq=False)
class Reader:
    """A weight matrix between units: who reads whom, and whose constants a bias can replace."""

    name: str
    source: Flow  # [columns]
    rows: Tensor  # units [rows]
    live: Tensor  # bool [rows, columns]
    foldable: Tensor  # bool [columns]: a constant that the bias can take over
    spare: Tensor  # bool [columns]: a zero that training leaves alone
    constant_rows: Tensor  # bool [rows]: constants because of what they read
    refusal: str  # why a constant cannot be folded here


@dataclass
class Network:
    """Collected while the model runs once."""

    held: Mapping[str, Tensor]
    strict: bool  # a mere zero may grow again: only masked and frozen zeros make a dead weight
    units: Identities = field(default_factory=Identities)
    layers: list[Layer] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)  # unit -> why it stays
    drawn: list[Tensor] = field(default_factory=list)  # units that dropout draws for

    def pin(self, units: Tensor, reason: str) -> None:
        """Keep these units, whatever happens."""
        for unit in units.tolist():
            self.pinned.setdefault(unit, reason)

    def live(self, layer: str, key: str, weight: Tensor) -> Tensor:
        """Which weights count as connections: the mask's, else those that are not zero."""
        mask = self.held.get(f"{layer}.{key}")
        if mask is not None:
            return mask
        if self.strict and weight.requires_grad:
            return torch.ones(weight.shape, dtype=torch.bool)
        return (weight.detach() != 0).cpu()

    def trains(self, layer: str, key: str, bias: Tensor | None) -> Tensor | bool:
        """Where training may move a bias."""
        if bias is None or not bias.requires_grad:
            return False
        mask = self.held.get(f"{layer}.{key}")
        return True if mask is None else mask
