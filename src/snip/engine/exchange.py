"""Copies of a network in which ordinary layers are sparse ones, and back.

Both ways are one `deepcopy` whose memo has the new layers and parameters from the start: it puts
them wherever the old ones stood (under two names, in a list, in a hook) and copies no old weight.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snip.engine.layers.encoder import SteppedEncoder, SteppedEncoderLayer
from snip.engine.layers.norm import BlockNorm1d, BlockNorm2d
from snip.engine.layers.packing import PackedModule
from snip.masks import Masks
from snip.masks.holding import PROVENANCE, hold
from snip.network.calls import copy_of

Kinds = dict[type[nn.Module], type[nn.Module]]
# The batch norms that run on the engine's layouts as well.
BLOCK_NORMS: Kinds = {nn.BatchNorm1d: BlockNorm1d, nn.BatchNorm2d: BlockNorm2d}
# What takes a short cut past its layers, and a kind of it that does not, for sparse layers in it.
ENCODERS: Kinds = {
    nn.TransformerEncoderLayer: SteppedEncoderLayer,
    nn.TransformerEncoder: SteppedEncoder,
}


def with_sparse_layers(
    model: nn.Module, sparse: Mapping[nn.Module, PackedModule], masks: Masks
) -> nn.Module:
    """A copy of `model` in which each key of `sparse` is its value; other masks are held."""
    memo: dict[int, Any] = {}
    for layer, twin in sparse.items():
        memo[id(layer)] = twin
        _replace(memo, layer, twin._parameters)
    root = copy_of(model, memo)
    for twin in sparse.values():
        twin.own_settings(memo)
    for module in root.modules():
        kinds = BLOCK_NORMS | ENCODERS if any(map(_is_sparse, module.modules())) else BLOCK_NORMS
        module.__class__ = kinds.get(type(module), type(module))
    packed = _packed_masks(root)
    hold(root, {n: mask for n, mask in masks.items() if n not in packed}, masks.provenance)
    return root


def with_ordinary_layers(root: nn.Module) -> nn.Module:
    """A copy of `root` with ordinary layers, which hold the masks that were packed.

    Its norms and encoders are still of the engine's kinds.
    """
    memo: dict[int, Any] = {}
    exchanged = []
    for module in root.modules():
        if isinstance(module, PackedModule):
            layer, parameters = module.kind.__new__(module.kind), module.ordinary_parameters()
            # The layer is complete at once, although its settings are still shared: a user's
            # `__deepcopy__` may look at it.
            layer.__setstate__(module.ordinary_state(parameters))
            memo[id(module)] = layer
            _replace(memo, module, parameters)
            exchanged.append((module, layer, parameters))
    plain = copy_of(root, memo)
    for module, layer, parameters in exchanged:
        layer.__setstate__(copy.deepcopy(module.ordinary_state(parameters), memo))
    hold(plain, _packed_masks(root), vars(root)[PROVENANCE])
    return plain


def with_ordinary_kinds(root: nn.Module) -> nn.Module:
    """`root` itself, whose norms and encoders are of torch's classes again."""
    ordinary = {new: old for old, new in (BLOCK_NORMS | ENCODERS).items()}
    for module in root.modules():
        if type(module) in ordinary:
            module.__class__ = ordinary[type(module)]
            if isinstance(module, tuple(BLOCK_NORMS)):
                vars(module).pop("relu", None)
    return root


def _is_sparse(module: nn.Module) -> bool:
    return isinstance(module, PackedModule)


def _replace(
    memo: dict[int, Any], layer: nn.Module, parameters: Mapping[str, nn.Parameter | None]
) -> None:
    """Let a deepcopy find the new parameters where it meets a layer's own."""
    for name, parameter in layer._parameters.items():
        new = parameters[name]
        if parameter is not None and new is not None:
            memo[id(parameter)] = new


def _packed_masks(root: nn.Module) -> dict[str, torch.Tensor]:
    """The masks of the sparse layers, by parameter name."""
    return {
        f"{prefix}.{name}": packed.mask
        for prefix, module in root.named_modules()
        if isinstance(module, PackedModule)
        for name, packed in module.packed.items()
        if packed.masked
    }
