"""Linear layers and convolutions as one kind: a matrix that is applied at every position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.anatomy.normed import normed_weights
from snip.anatomy.parameters import parameter_owners
from snip.common.errors import InputError

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MATRICES = (nn.Linear, *CONVOLUTIONS)


def matrices(model: nn.Module, weights: Mapping[str, object]) -> dict[str, nn.Module]:
    """The layers of these parameters by name, in the model's order."""
    owners = parameter_owners(model)
    found = {owner for name in weights for _, owner in owners[name]}
    return {name: module for name, module in model.named_modules() if module in found}


def require_layers(
    method: str,
    model: nn.Module,
    weights: Mapping[str, object],
    kinds: tuple[type[nn.Module], ...],
) -> None:
    """Refuse a network with connections in layers that a method cannot take; empty: it takes any.

    A weight that is computed from other tensors (weight norm, parametrizations) is none of a plain
    layer's own.
    """
    owners = parameter_owners(model)
    for name in weights if kinds else ():
        full, owner = owners[name][0]
        own = owner._parameters.get(full.rpartition(".")[2])
        if len(owners[name]) == 1 and isinstance(owner, kinds) and own is not None:
            continue
        known = ", ".join(kind.__name__ for kind in kinds)
        raise InputError(
            f"method {method!r} cannot take {name!r}, which a {type(owner).__name__} has: it takes "
            f"plain layers of the kinds {known}, with weights of their own. Leave it out with "
            "params=..., or use another method, such as 'lwc' or 'snip'."
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


@contextmanager
def recorded(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, list[Any]]]:
    """Inside the block, a list of (input, output) of each call of each layer.

    A layer passes on a copy of its output, which a later operation may then write to.
    """
    calls: dict[str, list[Any]] = {name: [] for name in layers}

    def record(name: str) -> Any:
        def hook(_layer: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
            calls[name].append((args[0].detach(), output))
            return output.clone()

        return hook

    handles = [layer.register_forward_hook(record(name)) for name, layer in layers.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
