"""Masks from and to `torch.nn.utils.prune`, which stores a weight as `weight_orig`, `weight_mask`.

torch multiplies the two before every forward of the layer. Here the weight itself has the zeros, so
that the model computes, saves and exports like any other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from snip.common.errors import InputError, KindError
from snip.common.text import listed
from snip.distributed.shards import is_sharded
from snip.masks import Masks, Provenance, held_masks, release
from snip.network.norms import normed_weights
from snip.network.parameters import ordinary, parameter_places

METHOD = "torch.nn.utils.prune"  # as the provenance calls it


class Pruned(NamedTuple):
    """A tensor that torch.nn.utils.prune computes before each forward of its module."""

    module: nn.Module
    key: str  # what the module calls it
    stored: nn.Parameter
    mask: torch.Tensor  # bool


def from_pruned(model: nn.Module) -> Masks:
    """Take the pruning over from torch: `model` has plain weights again, and holds the masks.

    Parameters stay the same objects under their plain names, for an optimiser that has them.
    """
    model = ordinary(model)
    found = _found(model)
    if not found:
        raise InputError(
            "torch.nn.utils.prune has pruned nothing in this model: snip.prune(model, batch, "
            "sparsity=...) prunes it; if torch's pruning was removed, the zeros are "
            "snip.Masks.from_zeros(model)."
        )
    _check_tied(model, found)
    for name, pruned in found.items():
        _check_stored(name, pruned)
    for pruned in found.values():
        prune.remove(pruned.module, pruned.key)
    # A tied weight has one name in the model's own order, the first.
    own = {name: found[name].mask for name, _ in model.named_parameters() if name in found}
    Masks(own, Provenance(method=METHOD)).apply(model)
    held = held_masks(model)
    assert held is not None
    return held


def to_pruned(model: nn.Module, masks: Masks | None = None) -> None:
    """Hand the pruning over to torch: `weight_orig` and `weight_mask` in place of `weight`.

    Without `masks` they are those that the model holds. It holds them no more: torch does.
    """
    model = ordinary(model)
    held = held_masks(model)
    masks = held if masks is None else masks
    if masks is None:
        raise InputError(
            "the model holds no masks: give some, or call snip.prune(model, batch, sparsity=...)."
        )
    if not isinstance(masks, Masks):
        raise KindError(
            f"masks is a {type(masks).__name__}, not snip.Masks: give to_pruned(model, "
            "snip.Masks({name: mask, ...}))."
        )
    masks.check_fit(model)
    _check_recomputed(model, masks)
    owners = parameter_places(model)
    release(model)
    rest = {name: mask for name, mask in (held or {}).items() if name not in masks}
    if rest and held is not None:
        Masks(rest, held.provenance).apply(model)
    for name, mask in masks.items():
        for full, module in owners[name]:
            key = full.rpartition(".")[2]
            device = module._parameters[key].device  # type: ignore[union-attr]
            prune.custom_from_mask(module, key, mask.to(device))


def _found(model: nn.Module) -> dict[str, Pruned]:
    """Weights that torch has pruned, by the names they have without it."""
    found = {}
    for prefix, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, prune.BasePruningMethod):
                key = hook._tensor_name
                name = f"{prefix}.{key}" if prefix else key
                mask = module._buffers[f"{key}_mask"]
                stored = module._parameters[f"{key}_orig"]
                assert mask is not None
                assert stored is not None
                if not bool(((mask == 0) | (mask == 1)).all()):
                    raise InputError(
                        f"the mask of {name!r} has values other than 0 and 1, which scale weights "
                        "and do not prune them: multiply them into the weight first."
                    )
                found[name] = Pruned(module, key, stored, mask.detach() != 0)
    return found


def _check_tied(model: nn.Module, found: dict[str, Pruned]) -> None:
    """Refuse a tied weight that is pruned in one place and not, or otherwise, in another."""
    masks: dict[int, list[torch.Tensor]] = {}
    for pruned in found.values():
        masks.setdefault(id(pruned.stored), []).append(pruned.mask)
    for name, pruned in found.items():
        own = masks[id(pruned.stored)]
        uses = sum(
            parameter is pruned.stored
            for module in model.modules()
            for parameter in module._parameters.values()
        )
        if uses > len(own) or any(not torch.equal(mask, own[0]) for mask in own):
            raise InputError(
                f"{name!r} is tied to other weights that torch.nn.utils.prune has not pruned, or "
                "not alike: a shared weight has one mask here. Prune it alike wherever it stands."
            )


def _check_stored(name: str, pruned: Pruned) -> None:
    """Refuse what holds no zeros as a plain weight."""
    hooks = pruned.module._forward_pre_hooks.values()
    if isinstance(pruned.module, ParametrizationList) or any(
        isinstance(hook, (WeightNorm, SpectralNorm)) for hook in hooks
    ):
        raise InputError(
            f"{name!r} is pruned by torch.nn.utils.prune under a norm or another parametrization, "
            "which is not supported: remove the norm, or prune with snip.prune."
        )
    if is_sharded(pruned.stored):
        raise InputError(f"{name!r} is sharded over processes, which is not supported.")


def _check_recomputed(model: nn.Module, masks: Masks) -> None:
    """Refuse weights that something reads without a call of the layer that owns them.

    torch computes the weight before that call: without one it is never renewed, and the second
    backward pass fails.
    """
    passed = [
        f"{prefix}.out_proj.{key}" if prefix else f"out_proj.{key}"
        for prefix, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
        for key in ("weight", "bias")
    ]
    refused = [name for name in masks if name in passed or name in normed_weights(model)]
    if refused:
        raise InputError(
            f"torch.nn.utils.prune cannot prune {listed(refused)}: it renews a weight before its "
            "own layer is called, and these are read by attention or by a norm without such a "
            "call. Leave them out: to_pruned(model, snip.Masks({name: ... for the others}))."
        )
