"""Which units are needed: those that reach an output other than as a constant."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from snip.export.shrink.network import Network, Reader

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Needs:
    """The answer for every unit, by its final identity."""

    roots: Tensor  # unit -> identity
    needed: Tensor  # identity -> bool
    pinned: dict[int, str]  # identity -> why it stays in any case
    fold: bool

    def of(self, units: Tensor) -> Tensor:
        """True where a unit stays."""
        return self.needed[self.roots[units]]


LAST = "the last unit of its layer"


def needed_units(network: Network, *, fold: bool) -> Needs:
    """The fewest units that must stay. Without `fold`, also those whose constant may train."""
    roots = network.units.roots()
    pinned: dict[int, str] = {}
    for unit, reason in network.pinned.items():
        pinned.setdefault(int(roots[unit]), reason)
    while True:
        needs = _solved(network, roots, pinned, fold=fold)
        empty = [
            layer
            for layer in network.layers
            if layer.makes_units and not needs.of(layer.result.units).any()
        ]
        if not empty:
            return needs
        # PyTorch has no layers without units; a constant one draws nothing else with it.
        result = empty[-1].result
        pinned[int(roots[result.units[int(result.constant.int().argmax())]])] = LAST


def _solved(network: Network, roots: Tensor, pinned: dict[int, str], *, fold: bool) -> Needs:
    needed = torch.zeros(len(roots), dtype=torch.bool)
    needed[list(pinned)] = True
    moving = torch.zeros_like(needed)  # constants that change once training begins
    while True:
        before = needed.sum() + moving.sum()
        for reader in reversed(network.readers):
            _propagate(reader, roots, needed, moving, fold=fold)
        if needed.sum() + moving.sum() == before:
            return Needs(roots, needed, pinned, fold)


def _propagate(
    reader: Reader, roots: Tensor, needed: Tensor, moving: Tensor, *, fold: bool
) -> None:
    rows, columns = roots[reader.rows], roots[reader.source.units]
    exempt = reader.foldable if fold else reader.spare & ~moving[columns]
    read = reader.live[needed[rows]].any(0)
    needed[columns[read & ~exempt]] = True
    if not fold:
        # A constant is only as steady as what it is made of.
        unsteady = (reader.live & (needed | moving)[columns]).any(1)
        moving[rows[reader.constant_rows & unsteady]] = True
