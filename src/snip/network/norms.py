"""Weights under weight norm or spectral norm: a stored tensor, divided by its length.

A zero of the stored tensor is a zero of the weight, so the stored tensor is what is pruned. Torch
has both norms twice, as parametrizations and, older, as hooks before a layer's forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm, _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

LENGTH = "length of a weight under weight norm"
PARAMETRIZED = "parametrized"  # how the reason of every other tensor begins that makes a weight
TORCH_PRUNED = f"{PARAMETRIZED} (torch.nn.utils.prune)"
POWER_ITERATIONS = 15  # as many as torch makes when a layer gets its spectral norm


@dataclass(frozen=True)
class NormedWeight:
    """One weight that a layer computes by dividing a stored tensor by its length."""

    layer: nn.Module
    key: str  # what the layer calls the weight
    stored: Any  # the parameter that is divided: as large as the weight, with the same zeros
    length: Any  # the parameter that the quotient is multiplied with (weight norm), or None
    norm: Any  # torch's parametrization or hook

    def parts(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, of the weight's shape, as [parts, rest]: each part is divided by its length."""
        if self.length is None or self.norm.dim == -1:
            return tensor.reshape(1, -1)
        return tensor.transpose(0, self.norm.dim).flatten(1)

    @torch.no_grad()
    def measure(self) -> None:
        """Set the length to that of the stored tensor, so that the weight is what is stored."""
        if self.length is not None:
            self.length.copy_(torch.norm_except_dim(self.stored, 2, self.norm.dim))

    def estimates(self) -> dict[str, torch.Tensor]:
        """The two vectors from which a spectral norm estimates the length, by key."""
        if self.length is not None:
            return {}
        if isinstance(self.norm, SpectralNorm):
            keys = [f"{self.norm.name}_u", f"{self.norm.name}_v"]
            return {key: self.layer.get_buffer(key) for key in keys}
        return dict(self.norm.named_buffers())

    @torch.no_grad()
    def renew(self) -> None:
        """Estimate the length of a stored tensor that was changed, from the beginning.

        The old vectors may see nothing of the few connections that are left, and the weight would
        be divided by nearly zero until training has moved them.
        """
        for vector in self.estimates().values():
            # Not ones: of weights that differ only in their sign, a sum may well be zero.
            vector.copy_(torch.arange(1, len(vector) + 1).sqrt())
        if isinstance(self.norm, nn.Module):
            training = self.norm.training
            self.norm.train()
            for _ in range(POWER_ITERATIONS if self.estimates() else 0):
                self.norm(self.stored)
            self.norm.train(training)
        elif isinstance(self.norm, SpectralNorm):
            for _ in range(POWER_ITERATIONS):
                weight = self.norm.compute_weight(self.layer, do_power_iteration=True)
            setattr(self.layer, self.key, weight)
        else:
            self.norm(self.layer, None)


def normed_weights(model: nn.Module) -> dict[str, NormedWeight]:
    """The weights under a norm, by the name of the stored tensor."""
    normed = [weight for module in model.modules() for weight in _normed_weights_of(module)]
    if not normed:  # as in most models
        return {}
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[weight.stored]: weight for weight in normed if weight.stored in names}


def stored_parameter(layer: nn.Module, key: str) -> Any:
    """The parameter that a layer's attribute is or is computed from; None if that is not one."""
    own = layer._parameters.get(key)
    if own is not None:
        return own
    normed = [n.stored for n in _normed_weights_of(layer) if n.key == key]
    if not normed and is_parametrized(layer, key):
        return getattr(layer.parametrizations[key], "original", None)  # type: ignore[index]
    return normed[0] if normed else None


def why_computed(module: nn.Module, key: str) -> str | None:
    """Reason why a zero of a module's parameter would be no zero of a weight, or None."""
    if isinstance(module, ParametrizationList):
        kinds = [type(part) for part in module]
        if kinds == [_WeightNorm]:
            return LENGTH if key == "original0" else None
        names = ", ".join(kind.__name__.lstrip("_") for kind in kinds)
        return None if kinds == [_SpectralNorm] else f"{PARAMETRIZED} ({names})"
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm) and key == f"{hook.name}_g":
            return LENGTH
        if isinstance(hook, BasePruningMethod) and key == f"{hook._tensor_name}_orig":
            return TORCH_PRUNED
    return None


def attribute_names(model: nn.Module) -> dict[str, str]:
    """The layer's name for each parameter; a stored tensor is called as its weight."""
    own = {name: name.rpartition(".")[2] for name, _ in model.named_parameters()}
    return own | {name: normed.key for name, normed in normed_weights(model).items()}


def layer_name(parameter: str) -> str:
    """The name of the layer that a parameter belongs to, by the parameter's name."""
    layer, parametrized, _ = f".{parameter}".partition(".parametrizations.")
    return layer[1:] if parametrized else parameter.rpartition(".")[0]


def _normed_weights_of(layer: nn.Module) -> list[NormedWeight]:
    if not layer._forward_pre_hooks and "parametrizations" not in layer._modules:
        return []
    return list(_each_normed_weight_of(layer))


def _each_normed_weight_of(layer: nn.Module) -> Iterator[NormedWeight]:
    parametrized = layer.parametrizations.items() if is_parametrized(layer) else ()  # type: ignore[operator,union-attr]
    for key, tensors in parametrized:
        kinds = [type(part) for part in tensors]
        if kinds == [_WeightNorm]:
            yield NormedWeight(layer, key, tensors.original1, tensors.original0, tensors[0])
        elif kinds == [_SpectralNorm]:
            yield NormedWeight(layer, key, tensors.original, None, tensors[0])
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            length = layer.get_parameter(f"{hook.name}_g")
            stored = layer.get_parameter(f"{hook.name}_v")
            yield NormedWeight(layer, hook.name, stored, length, hook)
        elif isinstance(hook, SpectralNorm):
            stored = layer.get_parameter(f"{hook.name}_orig")
            yield NormedWeight(layer, hook.name, stored, None, hook)
