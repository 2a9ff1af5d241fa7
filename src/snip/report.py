"""Say what happened: what a set of masks left of a network, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Report:
    """What was kept."""

    rows: tuple[Any, ...]


def report(model: nn.Module, masks: Any = None, *, inputs: Any = None) -> Report:
    """What the masks left of the model."""
    return Report(())
