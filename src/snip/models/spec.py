"""What a network is built for: the data sets' shapes, and one row of the table of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Images:
    """The shape of a data set's images [channels, size, size], and its number of classes."""

    channels: int
    size: int
    classes: int


IMAGES: dict[str, Images] = {
    "mnist": Images(1, 28, 10),
    "fashion-mnist": Images(1, 28, 10),
    "cifar-10": Images(3, 32, 10),
    "tiny-imagenet": Images(3, 64, 200),
}


@dataclass(frozen=True)
class ModelSpec:
    """A network of the paper: how it is built, m per data set, and the paper's sparsities."""

    name: str
    builder: Callable[[Images], nn.Module]
    totals: Mapping[str, int]  # data set -> m, weights and biases without batch norm
    sparsities: Mapping[str, tuple[float, ...]]  # data set -> the paper's; absent if not in it

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets this network is defined for, the default one first."""
        return tuple(self.totals)
