"""`accelerate`: the same network with only its surviving weights; `densify`: and back."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snip.anatomy.calling import first_tensor
from snip.anatomy.parameters import unwrap
from snip.common.errors import InputError, SnipWarning, first_line, nearest
from snip.engine.accelerated import Network
from snip.engine.convert.converter import Converter
from snip.engine.convert.timings import Timings
from snip.engine.convert.ways import fastest_ways
from snip.engine.kernels.library import available, reason
from snip.engine.layers.conv import SparseConv2d, convertible
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.norm import BlockNorm2d
from snip.engine.layers.packing import WAYS, PackedModule
from snip.engine.layers.recurrent import SparseRecurrent
from snip.engine.layers.recurrent import convertible as recurrent_convertible
from snip.masks import Masks, held_masks
from snip.tracing.forward import trace_for_training


def accelerate(
    model: nn.Module,
    batch: Any,
    *,
    masks: Masks | None = None,
    ways: Mapping[str, str] | None = None,
) -> nn.Module:
    """A network with the outputs and gradients of the pruned `model` that does only its work.

    `batch` is one typical batch (or its inputs): its size is what the layers are timed for, and
    the model's mode says whether for training or, after `model.eval()`, for inference.
    `ways` says it instead, by layer: "sparse" (where it says nothing), "winograd" (a dense
    kernel in the engine's layout) or "dense" (torch's own). Without native kernels the model
    itself comes back, with a warning: it runs dense.
    """
    model = unwrap(model)
    if isinstance(model, Network):
        raise InputError("the model is accelerated already: snip.densify(model) takes it back.")
    masks = held_masks(model) if masks is None else masks
    if masks is None:
        raise InputError("the model is not pruned: call snip.prune(model, batch, sparsity=...).")
    masks.check(model)
    if not available():
        warnings.warn(f"running dense: {reason()}", SnipWarning, stacklevel=2)
        return model
    inputs = _inputs(batch)
    replaced = _replacements(model, masks)
    if not replaced:
        raise InputError(
            "no layer here has a sparse counterpart: those are conv 2d, linear, LSTM and GRU."
        )
    # Through the memo, deepcopy puts the sparse layers where the dense ones were, and copies
    # no dense weight.
    root = copy.deepcopy(model, {id(layer): sparse for layer, sparse in replaced.items()})
    return _converted(model, root, inputs, ways)


def densify(model: nn.Module) -> nn.Module:
    """The ordinary model that `accelerate` was given, with the weights as they are now."""
    model = unwrap(model)
    if not isinstance(model, Network):
        raise InputError("this model was not made by snip.accelerate: it is an ordinary one.")
    plain = model.snip_plain[0]
    first = next(model.parameters(), None)
    if first is not None:  # it may have moved since
        plain.to(first.device, first.dtype)
    plain.load_state_dict(model.state_dict(), strict=True)
    plain.train(model.training)
    return plain


def _inputs(batch: Any) -> torch.Tensor:
    inputs = first_tensor(batch)
    if inputs is None or inputs.ndim == 0 or len(inputs) == 0:
        raise InputError("accelerate needs one typical batch, to see shapes and to time layers.")
    return inputs


def _replacements(model: nn.Module, masks: Masks) -> dict[nn.Module, nn.Module]:
    """Each layer that can run sparse, with its sparse counterpart."""
    found: dict[nn.Module, nn.Module] = {}
    for prefix, layer in model.named_modules():
        own = {
            key: masks[name]
            for key, _ in layer.named_parameters(recurse=False)
            if (name := f"{prefix}.{key}" if prefix else key) in masks
        }
        if type(layer) is nn.BatchNorm2d:
            found[layer] = _block_norm(layer)
        elif not own or _is_tied(model, layer):
            continue
        elif recurrent_convertible(layer):
            found[layer] = SparseRecurrent(layer, own)
        elif convertible(layer):
            kind: Any = SparseConv2d if isinstance(layer, nn.Conv2d) else SparseLinear
            found[layer] = kind(layer, own.get("weight"), own.get("bias"))
    if not any(isinstance(layer, PackedModule) for layer in found.values()):
        return {}
    return found


def _is_tied(model: nn.Module, layer: nn.Module) -> bool:
    """A weight that another layer shares must stay one tensor: such layers stay dense."""
    own = {id(p) for p in layer.parameters(recurse=False)}
    return any(
        id(p) in own
        for other in model.modules()
        if other is not layer
        for p in other.parameters(recurse=False)
    )


def _block_norm(norm: nn.BatchNorm2d) -> BlockNorm2d:
    twin = copy.deepcopy(norm)
    twin.__class__ = BlockNorm2d
    return twin  # type: ignore[return-value]


def _converted(
    model: nn.Module, root: nn.Module, inputs: torch.Tensor, ways: Mapping[str, str] | None
) -> Network:
    """The network in the engine's layouts; layer by layer where it cannot be traced."""
    try:
        traced = trace_for_training(model, inputs)
    except Exception as error:  # what a user's forward may raise under tracing has no common kind
        warnings.warn(
            f"{type(model).__name__} cannot be traced ({first_line(error)}): its layers "
            "run sparse one by one, with conversions at their borders.",
            SnipWarning,
            stacklevel=3,
        )
        return Network(root, None, model)
    if ways is None:
        timings = Timings()
        ways = fastest_ways(traced, root, timings, training=model.training)
        timings.save()
    _set_ways(root, ways)
    return Network(root, Converter(traced, root).convert(), model, inputs.ndim)


def _set_ways(root: nn.Module, ways: Mapping[str, str]) -> None:
    """Set how each layer runs; what `ways` does not name runs sparse."""
    layers = {
        name: layer
        for name, layer in root.named_modules()
        if isinstance(layer, (SparseConv2d, SparseLinear))
    }
    for name, way in ways.items():
        if name not in layers:
            raise nearest("layer", name, layers)
        if way not in WAYS:
            raise nearest("way", way, WAYS)
        if way not in layers[name].ways():
            raise InputError(
                f"{name} cannot run {way!r}, which is for 3 x 3 convolutions of stride 1 in one "
                "group: let it run sparse or dense."
            )
        layers[name].way = way
