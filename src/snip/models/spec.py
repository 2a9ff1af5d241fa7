"""One row of the table of networks, and the images that networks are built for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from snip.data import DATASETS
from snip.data.spec import Images

# The shapes and classes are those in the table of data sets.
IMAGES: dict[str, Images] = {name: spec.images for name, spec in DATASETS.items()}


@dataclass(frozen=True)
class ModelSpec:
    """A network: how it is built, m per data set, and the paper's sparsities."""

    name: str
    builder: Callable[[Images], nn.Module]
    totals: Mapping[str, int]  # data set -> m, weights and biases without batch norm
    sparsities: Mapping[str, tuple[float, ...]]  # data set -> the paper's, where it has one

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets this network is defined for, the default one first."""
        return tuple(self.totals)
