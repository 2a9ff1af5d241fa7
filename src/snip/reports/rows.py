"""The rows of a report: what is left of each pruned parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from snip.common.checks import check_kinds
from snip.common.errors import InputError
from snip.masks import Masks
from snip.network.layout import LiveUnits
from snip.network.network import Network
from snip.network.norms import attribute_names
from snip.network.paths import Paths
from snip.selection.costs import flops_per_element


@dataclass(frozen=True)
class Row:
    """One pruned parameter. None: not known, see the report's notes."""

    name: str
    shape: tuple[int, ...]
    kept: int
    total: int
    flops_before: float | None = None  # per sample
    flops_after: float | None = None
    units: int | None = None  # neurons, channels, hidden units that this weight feeds
    dead_units: int | None = None  # those without a live connection
    unconnected: int | None = None  # kept, but on no path from input to output

    @property
    def density(self) -> float:
        """The fraction kept."""
        return self.kept / self.total if self.total else 0.0

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """A row as `Report.to_dict` writes it; values of the wrong kind are refused."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        row = cls(**known | {"shape": tuple(data["shape"])})
        check_kinds(row, "a row of a report")
        if not 0 <= row.kept <= row.total:
            raise InputError(f"a row of a report keeps {row.kept:,} of {row.total:,} connections.")
        return row


def rows_of(
    model: nn.Module, masks: Masks, used: Mapping[str, float], paths: Paths
) -> tuple[Row, ...]:
    """One row per mask, in the order of the masks."""
    live = Network.of(model).live_units(paths.effective or masks)
    # The recurrent weights feed the units that the input weights have counted.
    keys = attribute_names(model)
    counted = {name: x for name, x in live.items() if not keys[name].startswith("weight_hh")}
    return tuple(_row(name, mask, used, paths, counted.get(name)) for name, mask in masks.items())


def _row(
    name: str,
    mask: torch.Tensor,
    used: Mapping[str, float],
    paths: Paths,
    units: LiveUnits | None,
) -> Row:
    kept, total = int(mask.count_nonzero()), mask.numel()
    each = flops_per_element(mask.shape, used[name]) if name in used else None
    effective = (paths.effective or {}).get(name)
    return Row(
        name=name,
        shape=tuple(mask.shape),
        kept=kept,
        total=total,
        flops_before=None if each is None else each * total,
        flops_after=None if each is None else each * kept,
        units=None if units is None else units.outputs.numel(),
        dead_units=None if units is None else int((~units.outputs).sum()),
        unconnected=None if effective is None else kept - int(effective.sum()),
    )
