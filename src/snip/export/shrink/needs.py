"""Which units are needed, and what the others leave behind in the biases of those that read them.

Needed are the units that reach an output other than as a constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from snip.units.ledger import Ledger

Tensor = torch.Tensor

LAST = "the last unit of its layer"


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

    def kept(self, units: Tensor) -> tuple[int, ...] | None:
        """The indices of the units that stay; None if all do."""
        stays = self.of(units)
        return None if bool(stays.all()) else tuple(torch.nonzero(stays).flatten().tolist())


def needed_units(ledger: Ledger, *, fold: bool) -> Needs:
    """The fewest units that must stay. Without `fold`, also those whose constant may train."""
    roots = ledger.roots()
    pinned: dict[int, str] = {}
    for unit, reason in ledger.pinned.items():
        pinned.setdefault(int(roots[unit]), reason)
    while True:
        needs = Needs(roots, _solved(ledger, roots, list(pinned), fold=fold), pinned, fold)
        made = [layer.result for layer in ledger.layers if layer.makes_units]
        empty = [result for result in made if not needs.of(result.units).any()]
        if not empty:
            return needs
        # PyTorch has no layers without units: one stays, best a constant, which needs no others.
        result = empty[-1]
        pinned[int(roots[result.units[int(result.constant.int().argmax())]])] = LAST


def contributions(ledger: Ledger, needs: Needs) -> dict[str, Tensor]:
    """Name of a bias -> what removed units add to each of its entries, where that is not zero."""
    found = {}
    for reader in ledger.readers:
        source = reader.source
        gone = source.even & ~needs.of(source.units)
        # A uniform input is multiplied by the sum over a kernel's positions.
        columns = torch.nonzero(gone).flatten().to(reader.weight.device)
        matrix = reader.weight[:, columns].cpu().double().sum(2)
        delta = (matrix @ source.value[gone]) * needs.of(reader.rows)
        if delta.any():
            found[f"{reader.name}.{reader.bias}"] = delta
    return found


def _solved(ledger: Ledger, roots: Tensor, pinned: list[int], *, fold: bool) -> Tensor:
    """What is pinned and all that it reads, directly or through others."""
    needed = torch.zeros(len(roots), dtype=torch.bool)
    needed[pinned] = True
    moving = torch.zeros_like(needed)  # constants that change once training begins
    before = -1
    while before != (before := int(needed.sum() + moving.sum())):
        for reader in reversed(ledger.readers):
            source, rows, columns = reader.source, roots[reader.rows], roots[reader.source.units]
            steady = source.zero & source.settled & source.blocked & ~moving[columns]
            read = reader.live[needed[rows]].any(0)
            needed[columns[read & ~(reader.foldable if fold else steady)]] = True
            if not fold:
                # A constant changes in training as soon as one of those that it is made of does.
                unsteady = (reader.live & (needed | moving)[columns]).any(1)
                moving[rows[reader.constant_rows & unsteady]] = True
    return needed
