"""Linear layers and convolutions as one kind: a matrix that is applied at every position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from snip.common.errors import InputError
from snip.network.norms import normed_weights
from snip.network.parameters import FORWARDS, has_own_forward, parameter_places

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MATRICES = (nn.Linear, *CONVOLUTIONS)


# Elements of what is computed for some images at once: 64 MB in float32. Of the batches of small
# networks that is all of them, so that slices cost nothing.
LARGEST = 1 << 24


def anything(_method: str, _model: nn.Module, _weights: Mapping[str, nn.Parameter]) -> None:
    """The check of a method that has nothing to check."""


@dataclass(frozen=True)
class Takes:
    """The layers that a method takes: of these kinds (none: of any), and none that `check` refuses.

    `check(method, model, weights)` raises an InputError. It is called before anything is trained.
    """

    kinds: tuple[type[nn.Module], ...] = ()
    check: Callable[[str, nn.Module, Mapping[str, nn.Parameter]], None] = anything


ANY = Takes()


def parameter_of(layer: str, key: str) -> str:
    """The full name of a layer's parameter; the layer may be the model itself, which has none."""
    return f"{layer}.{key}" if layer else key


def parts(count: int, each: int) -> Iterator[slice]:
    """Slices of `count` images or positions, with `each` elements: LARGEST elements at most.

    A slice has one image or position at least.
    """
    step = max(1, LARGEST // max(each, 1))
    return (slice(first, first + step) for first in range(0, count, step))


def matrices(model: nn.Module, weights: Mapping[str, object]) -> dict[str, nn.Module]:
    """The layers of these parameters by name, in the model's order."""
    owners = parameter_places(model)
    found = {owner for name in weights for _, owner in owners[name]}
    return {name: module for name, module in model.named_modules() if module in found}


def require_layers(
    method: str, model: nn.Module, weights: Mapping[str, nn.Parameter], takes: Takes
) -> None:
    """Refuse a network with connections in layers that a method cannot take.

    A weight that is computed from other tensors (weight norm, parametrizations) is none of a plain
    layer's own.
    """
    owners = parameter_places(model)
    for name in weights if takes.kinds else ():
        full, owner = owners[name][0]
        own = owner._parameters.get(full.rpartition(".")[2])
        if len(owners[name]) > 1 or own is None or not isinstance(owner, takes.kinds):
            known = ", ".join(kind.__name__ for kind in takes.kinds)
            why = f"it takes plain layers of the kinds {known}, with weights of their own"
            raise not_taken(method, name, owner, why)
        if _computes_elsewhere(owner):
            why = "it counts on torch's own forward of a layer, which this one does not run"
            raise not_taken(method, name, owner, why)
    takes.check(method, model, weights)


def _computes_elsewhere(layer: nn.Module) -> bool:
    """Whether a layer's outputs are not those of its kind in torch.

    Its class or itself may have another forward, or none is called: torch's attention computes
    with the weight of its last layer without the layer.
    """
    replaced = any(key in vars(layer) for key in FORWARDS)
    return replaced or has_own_forward(layer) or isinstance(layer, NonDynamicallyQuantizableLinear)


def not_taken(method: str, name: str, layer: nn.Module, why: str) -> InputError:
    """The error for a parameter of a layer that a method cannot take."""
    return InputError(
        f"method {method!r} cannot take {name!r}, which a {type(layer).__name__} has: {why}. "
        "Leave it out with params=..., or use another method, such as 'lwc' or 'snip'."
    )


def require_no_norms(method: str, model: nn.Module, weights: Mapping[str, object]) -> None:
    """Refuse weights under weight or spectral norm, which divide by the length of what is stored.

    A method that tries zeros as it trains would make that length zero, and the loss NaN.
    """
    normed = next((name for name in normed_weights(model) if name in weights), None)
    if normed is not None:
        raise InputError(
            f"method {method!r} cannot take {normed!r}, which is under weight or spectral norm: a "
            "row of zeros has no length to divide by. Leave it out with params=..., or use another "
            "method, such as 'lwc' or 'snip'."
        )


def is_batched(layer: nn.Module, inputs: torch.Tensor) -> bool:
    """Whether the inputs have a dimension for the batch, which torch's layers can do without."""
    assert isinstance(layer, MATRICES)
    return inputs.ndim >= (2 if isinstance(layer, nn.Linear) else layer.weight.ndim)


def columns(layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """What the layer's matrix is applied to, [B, groups, K, positions]; K as in weight.flatten(1).

    Of a linear layer that is the input, of a convolution the patches of it.
    """
    if isinstance(layer, nn.Linear):
        return inputs.reshape(len(inputs), -1, inputs.shape[-1]).transpose(1, 2).unsqueeze(1)
    assert isinstance(layer, CONVOLUTIONS)
    padding: Any = layer.padding
    if layer.padding_mode != "zeros":
        inputs = F.pad(inputs, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    # Convolving with one filter per element of the kernel cuts out the patches.
    size, channels = layer.weight[0, 0].numel(), layer.in_channels
    one_hot = torch.eye(size, dtype=inputs.dtype, device=inputs.device)
    filters = one_hot.view(size, 1, *layer.kernel_size).repeat(
        channels, 1, *[1] * (inputs.ndim - 2)
    )
    convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[inputs.ndim - 3]
    patches = convolve(inputs, filters, None, layer.stride, padding, layer.dilation, channels)
    return patches.view(len(inputs), layer.groups, -1, patches[0, 0].numel())


def rows(layer: nn.Module, outputs: torch.Tensor) -> torch.Tensor:
    """The layer's outputs, or their gradients, as [B, groups, outputs of a group, positions]."""
    if isinstance(layer, nn.Linear):
        return outputs.reshape(len(outputs), -1, outputs.shape[-1]).transpose(1, 2).unsqueeze(1)
    assert isinstance(layer, CONVOLUTIONS)
    return outputs.reshape(len(outputs), layer.groups, layer.out_channels // layer.groups, -1)
