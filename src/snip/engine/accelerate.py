"""`accelerate`: the same network with only its surviving weights; `densify`: and back."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snip.anatomy.accelerated import Accelerated
from snip.anatomy.calling import first_tensor
from snip.anatomy.hooks import hooked
from snip.anatomy.parameters import parameter_owners, unwrap
from snip.common.errors import InputError, KindError, SnipWarning, first_line, nearest
from snip.engine.accelerated import Conversion, accelerated, not_accelerated
from snip.engine.convert.converter import Converter
from snip.engine.convert.timings import Timings
from snip.engine.convert.ways import fastest_ways
from snip.engine.exchange import with_ordinary_layers, with_sparse_layers
from snip.engine.kernels.library import available, reason
from snip.engine.layers.packing import WAYS, PackedModule
from snip.engine.layers.table import SPARSE_LAYERS, sparse_layer
from snip.engine.proof import why_not
from snip.masks import Masks, held_masks
from snip.tracing.forward import Traced, UntraceableError, trace_for_training


def accelerate(
    model: nn.Module,
    batch: Any,
    *,
    masks: Masks | None = None,
    ways: Mapping[str, str] | None = None,
) -> nn.Module:
    """A network with the outputs and gradients of the pruned `model` that does only its work.

    It is a copy, of the model's own class, with the same names everywhere.
    `batch` is one typical batch (or its inputs): its size is what the layers are timed for, and
    the model's mode says whether for training or, after `model.eval()`, for inference.
    `ways` decides instead of the timing, by layer: "sparse" (layers that it does not name),
    "winograd" (a dense kernel in the engine's layout) or "dense" (torch's own). Without native
    kernels, or where the copy would not compute the same, the model itself comes back, with a
    warning: it runs dense.
    """
    model = unwrap(model)
    if isinstance(model, Accelerated):
        raise InputError("the model is accelerated already: snip.densify(model) takes it back.")
    masks = held_masks(model) if masks is None else masks
    if masks is None:
        raise InputError("the model is not pruned: call snip.prune(model, batch, sparsity=...).")
    masks = masks if isinstance(masks, Masks) else Masks(masks)
    masks.check(model)
    if ways is not None and not isinstance(ways, Mapping):
        raise KindError(f"ways is {ways!r}: give a way by layer, such as {{'conv1': 'dense'}}.")
    if not available():
        warnings.warn(f"running dense: {reason()}", SnipWarning, stacklevel=2)
        return model
    inputs = _inputs(batch)
    fast = _converted(model, masks, inputs, ways)
    fault = why_not(model, fast, inputs)
    if fault is not None:
        warnings.warn(
            f"{type(model).__name__} runs dense: accelerated, it would not do the same ({fault}).",
            SnipWarning,
            stacklevel=2,
        )
        return model
    return fast


def _converted(
    model: nn.Module, masks: Masks, inputs: torch.Tensor, ways: Mapping[str, str] | None
) -> nn.Module:
    traced = _traced(model, inputs)
    root = with_sparse_layers(model, _sparse_layers(model, masks, traced), masks)
    if traced is None:  # the user's own forward runs, over sparse layers
        return accelerated(root, Conversion(root))
    if ways is None:
        timings = Timings()
        ways = fastest_ways(traced, root, timings, training=model.training)
        timings.save()
    _set_ways(root, ways)
    graph = Converter(traced, root).convert()
    return accelerated(root, Conversion(root, graph, inputs.ndim, traced.constants))


def densify(model: nn.Module) -> nn.Module:
    """An ordinary model of the class that `accelerate` was given, with the weights as they are now.

    The masks are held again; the accelerated network stays as it is.
    """
    model = unwrap(model)
    if not isinstance(model, Accelerated):
        raise InputError("this model was not made by snip.accelerate: it is an ordinary one.")
    return not_accelerated(with_ordinary_layers(model))


def _inputs(batch: Any) -> torch.Tensor:
    inputs = first_tensor(batch)
    if inputs is None or inputs.ndim == 0 or len(inputs) == 0:
        raise InputError("accelerate needs one typical batch, to see shapes and to time layers.")
    return inputs


def _traced(model: nn.Module, inputs: torch.Tensor) -> Traced | None:
    """The network as a graph with the shape of every tensor; None, with a warning, if it has none.

    A converted graph does not call its modules one by one, so that hooks on them would be lost.
    """
    try:
        for name, module in model.named_modules():
            if module is not model and hooked(module):
                raise UntraceableError(f"hooks on {name} wait for its calls")
        return trace_for_training(model, inputs, leaf=lambda m: sparse_layer(m) is not None)
    except Exception as error:  # what a user's forward may raise under tracing has no common kind
        warnings.warn(
            f"{type(model).__name__} cannot be traced ({first_line(error)}): its layers "
            "run sparse one by one, with conversions at their borders.",
            SnipWarning,
            stacklevel=4,
        )
        return None


def _sparse_layers(
    model: nn.Module, masks: Masks, traced: Traced | None
) -> dict[nn.Module, PackedModule]:
    """Each pruned layer that can run sparse, with its sparse counterpart."""
    needed_whole = _tied(model) | _read_by_forward(model, traced) | _read_by_torch(model)
    found: dict[nn.Module, PackedModule] = {}
    for prefix, layer in model.named_modules():
        kind, names = sparse_layer(layer), {key: f"{prefix}.{key}" for key in layer._parameters}
        own = {key: masks[name] for key, name in names.items() if name in masks}
        if kind is not None and own and needed_whole.isdisjoint(layer._parameters.values()):
            found[layer] = kind(layer, own)
    if not found:
        kinds = ", ".join(kind.__name__ for kind in SPARSE_LAYERS)
        raise InputError(
            f"no pruned layer of this {type(model).__name__} can run sparse: those that can are "
            f"{kinds} inside a network, with weights of their own."
        )
    return found


def _tied(model: nn.Module) -> set[torch.Tensor | None]:
    """Parameters that two layers share: they must stay one tensor."""
    return {
        model.get_parameter(first)
        for first, owners in parameter_owners(model).items()
        if len({(module, name.rpartition(".")[2]) for name, module in owners}) > 1
    }


def _read_by_forward(model: nn.Module, traced: Traced | None) -> set[torch.Tensor | None]:
    """Parameters that the user's forward reads itself, in their ordinary shape."""
    if traced is None:
        return set()
    read = {str(node.target) for node in traced.graph.nodes if node.op == "get_attr"}
    every = model.named_parameters(remove_duplicate=False)
    return {parameter for name, parameter in every if name in read}


def _read_by_torch(model: nn.Module) -> set[torch.Tensor | None]:
    """Parameters that torch reads past their layers: its fast way through a transformer layer."""
    layers = [m for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer)]
    return {parameter for layer in layers for parameter in layer.parameters()}


def _set_ways(root: nn.Module, ways: Mapping[str, str]) -> None:
    """Set how each layer runs; what `ways` does not name runs sparse."""
    layers = {name: m for name, m in root.named_modules() if isinstance(m, PackedModule)}
    for name, way in ways.items():
        if name not in layers:
            raise nearest("layer", name, layers)
        if way not in WAYS:
            raise nearest("way", way, WAYS)
        if way not in layers[name].ways():
            raise InputError(
                f"{name} cannot run {way!r}: it can run {' or '.join(layers[name].ways())} "
                "(winograd is for 3 x 3 convolutions of stride 1 in one group)."
            )
        layers[name].way = way
