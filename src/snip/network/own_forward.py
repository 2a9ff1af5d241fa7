"""Layers of one's own that inherit from torch's: does their forward use the weight as it is?

A layer may compute another weight from the stored one, as weight standardisation does, which
subtracts a mean: a zero of the parameter is then no zero of the computation.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from snip.network.normed import stored_parameter

WEIGHTED = (
    F.linear, F.conv1d, F.conv2d, F.conv3d,
    F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d,
)  # fmt: skip
FORWARDS = ("forward", "_conv_forward")
KNOWN = ("weight", "bias")


def changes_weight(layer: nn.Module) -> bool:
    """Whether a linear layer or convolution with a forward of its own fills in the weight's zeros.

    Its forward is tried on a copy with a weight of zeros and ones. Where that fails, or shows no
    weight, nothing is known, and the layer counts as what it inherits from.
    """
    weight = layer._parameters.get("weight")
    if weight is None or not isinstance(layer, (nn.Linear, _ConvNd)) or not has_own_forward(layer):
        return False
    every_other = weight.new_zeros(weight.shape)
    every_other.view(-1)[1::2] = 1
    used = _WeightsUsed(weight.shape)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), used:
            _twin(layer, every_other).forward(weight.new_ones(_input_shape(layer)))
    except Exception:  # a user's forward may do anything at all
        return False
    return any(bool(x[every_other == 0].any()) for x in used.found)


def has_own_forward(layer: nn.Module) -> bool:
    """Whether the layer's class computes in another way than the layer of torch that it is."""
    base = next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("torch.nn.modu"))
    return any(getattr(type(layer), k, None) is not getattr(base, k, None) for k in FORWARDS)


def _twin(layer: nn.Module, weight: torch.Tensor) -> nn.Module:
    """The layer with another weight, and buffers of its own, so that the layer stays as it is."""
    twin = copy.copy(layer)
    twin._parameters = {**layer._parameters, "weight": nn.Parameter(weight)}
    twin._buffers = {k: None if x is None else x.clone() for k, x in layer._buffers.items()}
    return twin


def is_added(layer: nn.Module, key: str) -> bool:
    """Whether a parameter of a linear layer or convolution is one that torch's layer has not."""
    if not isinstance(layer, (nn.Linear, nn.Bilinear, _ConvNd)):
        return False
    own = layer._parameters.get(key)
    return own is not None and all(stored_parameter(layer, k) is not own for k in KNOWN)


def _input_shape(layer: Any) -> tuple[int, ...]:
    """Of the smallest input that a layer takes."""
    if isinstance(layer, nn.Linear):
        return 2, layer.in_features
    spans = zip(layer.kernel_size, layer.dilation, strict=True)
    return 2, layer.in_channels, *((size - 1) * step + 1 for size, step in spans)


class _WeightsUsed(TorchFunctionMode):
    """Collects the weights of this shape with which layers are computed inside the block."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.found: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in WEIGHTED:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            self.found += [weight] if weight.shape == self.shape else []
        return func(*args, **kwargs)
