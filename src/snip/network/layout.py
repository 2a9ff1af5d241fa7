"""Layout of units in the parameters of a layer: neurons, channels, gates."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

Packed = Mapping[str, Sequence[str]]  # parameter -> the names of its parts, equal blocks of rows

ATTENTION = ("q", "k", "v")
GATES: dict[type[nn.Module], tuple[str, ...]] = {  # in the order in which torch stores them
    nn.LSTM: ("input gate", "forget gate", "cell", "output gate"),
    nn.LSTMCell: ("input gate", "forget gate", "cell", "output gate"),
    nn.GRU: ("reset gate", "update gate", "new state"),
    nn.GRUCell: ("reset gate", "update gate", "new state"),
}
_GATED = re.compile(r"(weight|bias)_(ih|hh).*")


@dataclass(frozen=True)
class LiveUnits:
    """True where a unit on that side of a weight has a connection."""

    outputs: torch.Tensor
    inputs: torch.Tensor


@dataclass(frozen=True)
class Layout:
    """Dimensions of a parameter that count the units its layer makes and reads.

    `parts` names the layers that a tensor holds one above the other: q, k and v of attention, the
    gates of a recurrent layer. Such a tensor may keep thousands of connections and none of its
    keys, so each part counts as a layer wherever it matters that a layer is empty.
    """

    makes: int = 0
    reads: int | None = 1  # None for a bias
    groups: int = 1  # of a convolution: dimension 1 counts the units of one group
    window: bool = True  # the dimensions from 2 on are positions; those of Bilinear are inputs
    parts: tuple[str, ...] = ()

    def rows(self, shape: Sequence[int]) -> int:
        """Number of outputs of a layer with a weight of this shape, the gates of a unit apart."""
        return shape[self.makes] * (self.groups if self.makes == 1 else 1)

    def fans(self, shape: Sequence[int]) -> tuple[int, int]:
        """Number of inputs that a unit sums, and of units that an input feeds.

        Gates, and q, k and v, count each for itself. Strides are not taken into account, as
        everywhere. A bias has its length for both, as in TensorFlow.
        """
        made = shape[self.makes] // max(1, len(self.parts))
        if self.reads is None:
            return made, made
        read, positions = shape[self.reads], math.prod(shape[2:])
        if not self.window:
            return read * positions, made
        if self.makes == 0:
            made //= self.groups
        else:
            read //= self.groups
        return read * positions, made * positions

    def live(self, mask: torch.Tensor) -> LiveUnits:
        """The units of a weight that have a connection."""
        assert self.reads is not None
        return LiveUnits(self._side(mask, self.makes), self._side(mask, self.reads))

    def _side(self, mask: torch.Tensor, dim: int) -> torch.Tensor:
        if self.groups == 1 or dim == 0:
            return mask.transpose(0, dim).flatten(1).any(1)
        # Of a weight [a, b / groups, ...], which of the b have a connection.
        by_group = mask.reshape(self.groups, -1, mask.shape[1], mask[0, 0].numel())
        return by_group.any(3).any(1).flatten()


def layout_of(layer: nn.Module, key: str, ndim: int) -> Layout:
    """The layout of the parameter that a layer calls `key`."""
    parts: tuple[str, ...] = ()
    if isinstance(layer, nn.MultiheadAttention):
        parts = ATTENTION if key in ("in_proj_weight", "in_proj_bias") else ()
    elif _GATED.fullmatch(key):
        parts = next((gates for kind, gates in GATES.items() if isinstance(layer, kind)), ())
    if ndim < 2:
        return Layout(reads=None, parts=parts)
    makes = int(isinstance(layer, _ConvTransposeNd) or is_conv1d(layer))
    groups = layer.groups if isinstance(layer, _ConvNd) else 1
    window = not isinstance(layer, nn.Bilinear)
    return Layout(makes, 1 - makes, groups, window, parts)


def is_weight(shape: Sequence[int]) -> bool:
    """True if a prunable parameter of this shape connects units; with one dimension it is a bias.

    Its mask and its scores have the same shape.
    """
    return len(shape) > 1


def is_conv1d(layer: nn.Module) -> bool:
    """True for Hugging Face's Conv1D, a linear layer whose weight is [in, out].

    A model that has one has imported transformers, so it is not imported here.
    """
    transformers = sys.modules.get("transformers.pytorch_utils")
    return type(layer) is getattr(transformers, "Conv1D", None)


def split(tensors: Mapping[str, torch.Tensor], packed: Packed) -> dict[str, torch.Tensor]:
    """The tensors with each part by itself, named "attention.in_proj_weight (k)"; views."""
    parts: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        names = part_names(name, packed)
        # A whole tensor stays as it is: a single number has no rows to divide.
        parts |= zip(names, tensor.chunk(len(names)) if name in packed else [tensor], strict=True)
    return parts


def part_names(name: str, packed: Packed) -> list[str]:
    """The names of a parameter's parts; its own name if it is whole."""
    return [f"{name} ({part})" for part in packed[name]] if name in packed else [name]
