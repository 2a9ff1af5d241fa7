"""What shrinking did, layer by layer, and what stayed although it does nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from snip.export.shrink.needs import Needs
from snip.units.ledger import Layer, Ledger
from snip.units.surgery import widths


@dataclass(frozen=True)
class LayerChange:
    """Units of one layer, before and after."""

    name: str
    kind: str
    inputs: tuple[int, int]
    units: tuple[int, int]
    kept_constants: tuple[tuple[str, int], ...]  # (reason, how many): dead, but not removable


@dataclass(frozen=True)
class ShrinkReport:
    """The changes of every layer; `str` of it is a table."""

    layers: tuple[LayerChange, ...]
    parameters: tuple[int, int]  # stored numbers, pruned ones included
    folded: int  # biases that took over constants
    notes: tuple[str, ...]  # why training would differ from that of the model before

    @property
    def removed(self) -> int:
        """Units removed in all layers."""
        return sum(layer.units[0] - layer.units[1] for layer in self.layers)

    @property
    def trains_alike(self) -> bool:
        """Whether training goes on exactly as in the model before, whatever the optimiser adds
        to or scales in single weights."""
        return not self.notes

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [f"{'layer':<28}{'inputs':>16}{'units':>16}"]
        lines += [
            f"{layer.name:<28}{_arrow(layer.inputs):>16}{_arrow(layer.units):>16}"
            for layer in self.layers
        ]
        lines.append(f"{self.removed:,} units removed; {before:,} -> {after:,} parameters")
        lines += [
            f"{layer.name}: {count} constant units stay: {reason}"
            for layer in self.layers
            for reason, count in layer.kept_constants
        ]
        return "\n".join([*lines, *self.notes])


def layer_changes(ledger: Ledger, needs: Needs) -> tuple[LayerChange, ...]:
    """One entry per layer that makes units, in the order of the forward pass."""
    reasons = _reasons(ledger, needs)
    return tuple(_change(layer, needs, reasons) for layer in ledger.layers if layer.makes_units)


def _change(layer: Layer, needs: Needs, reasons: dict[int, str]) -> LayerChange:
    units = layer.result.units
    stays = needs.of(units)
    roots = needs.roots[units[stays & layer.result.constant]]
    kept = Counter(reasons.get(root, "a live unit is added to it") for root in roots.tolist())
    reads = widths(layer.module)[0]
    left = reads if layer.source is None else int(needs.of(layer.source.units).sum())
    return LayerChange(
        layer.name,
        type(layer.module).__name__,
        (reads, left),
        (len(units), int(stays.sum())),
        tuple(kept.items()),
    )


def _reasons(ledger: Ledger, needs: Needs) -> dict[int, str]:
    """Why a constant stays, by its identity."""
    reasons = dict(needs.pinned)
    for reader in ledger.readers:
        source = reader.source
        read = reader.live[needs.of(reader.rows)].any(0) & source.constant & needs.of(source.units)
        for column in torch.nonzero(read & ~(reader.foldable & needs.fold)).flatten().tolist():
            trains = "where training would change it"
            why = trains if reader.foldable[column] else f"which {reader.refusal}"
            root = int(needs.roots[source.units[column]])
            reasons.setdefault(root, f"read by {reader.name!r}, {why}")
    return reasons


def _arrow(pair: tuple[int, int]) -> str:
    return f"{pair[0]} -> {pair[1]}" if pair[0] != pair[1] else str(pair[0])
