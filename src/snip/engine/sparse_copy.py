"""The copy of a pruned network in which layers run sparse, and which of them can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, nearest
from snip.common.text import first_line
from snip.engine.accelerated import Conversion, accelerated
from snip.engine.convert.converter import Converter
from snip.engine.convert.timings import Timings
from snip.engine.convert.ways import fastest_ways
from snip.engine.exchange import with_sparse_layers
from snip.engine.fused.straight import straight_of
from snip.engine.layers.attention import SparseAttention
from snip.engine.layers.packing import DENSE, SPARSE, WAYS, PackedModule, Ways
from snip.engine.layers.table import OUTPUT_PROJECTION, SPARSE_LAYERS, sparse_layer
from snip.engine.pace import losing_layers, timing_decides
from snip.engine.proof import why_not
from snip.masks import Masks
from snip.network.calls import arguments
from snip.network.graph import Graph, UntraceableError, trace
from snip.network.parameters import parameter_places
from snip.network.reader import used_outside
from snip.network.untouched import hooked


class DenseError(Exception):
    """Why a network has to run dense."""


class SparseCopies:
    """Makes accelerated copies of one pruned model, which differ in how their layers run.

    `inputs` are what the model is called on: it is traced for them, and every copy has to compute
    the same as the model on them.
    """

    def __init__(self, model: nn.Module, masks: Masks, inputs: Any) -> None:
        self.model, self.masks, self.inputs = model, masks, inputs
        self.names = _sparse_names(model, masks, inputs)
        self.traced: Graph | None = None
        self.remarks: tuple[str, ...] = ()  # what a user of the copies should know
        try:
            self.traced = _traced(model, inputs)
        except Exception as error:  # what a user's forward may raise has no common kind
            self.remarks = (
                f"{type(model).__name__} cannot be traced ({first_line(error)}): its layers "
                "run sparse one by one, with conversions at their borders.",
            )

    def fastest_ways(self) -> Ways:
        """How each layer runs that is not fastest sparse, as far as layers are timed alone."""
        if not timing_decides():
            return {}
        if self.traced is None:
            return self.without_losing({})
        timings = Timings()
        root = self._root({})
        found = fastest_ways(self.traced, root, timings, training=self.model.training)
        timings.save()
        # The graph does not show the layers inside torch's encoders, nor how attention is called.
        called = {str(n.target) for n in self.traced.graph.nodes if n.op == "call_module"}
        alone = [n for n in self.names if n not in called or _is_attention(root, n)]
        return found | self._losing(alone)

    def without_losing(self, ways: Ways) -> Ways:
        """These ways, with layers dense that are slower sparse, or fail, between plain tensors.

        They stay as they are if no sparse layer would be left.
        """
        sparse = [name for name in self.names if ways.get(name) != DENSE]
        losing = self._losing(sparse)
        return ways if len(losing) == len(sparse) else ways | losing

    def _losing(self, names: list[str]) -> Ways:
        """Those of the layers that are slower sparse, or fail, with all that is inside them."""
        if not names:
            return {}
        losing = losing_layers(self.model, self._root({}), names, self.inputs)
        return {name: DENSE for name in names if name in losing or _parent(name) in losing}

    def copy(self, ways: Mapping[str, str]) -> nn.Module:
        """The accelerated network; DenseError if it would not do the same as the model."""
        for name, way in ways.items():
            if name not in self.names:
                raise nearest("layer", name, self.names)
            if way not in WAYS:
                raise nearest("way", way, WAYS)
        return self._proven(self._converted(ways))

    def in_one_call(self) -> nn.Module | None:
        """The copy in which all layers are sparse, if it runs as one native call; else None."""
        if self.traced is None or any(len(node.users) > 1 for node in self.traced.graph.nodes):
            return None
        fast = self._converted({})
        return None if straight_of(fast) is None else self._proven(fast)

    def _converted(self, ways: Mapping[str, str]) -> nn.Module:
        root = self._root(ways)
        conversion = Conversion(root)  # the user's own forward runs, over sparse layers
        if self.traced is not None:
            graph = Converter(self.traced, root).convert()
            conversion = Conversion(root, graph, self.traced.values, self.traced.constants)
        return accelerated(root, conversion)

    def _proven(self, fast: nn.Module) -> nn.Module:
        fault = why_not(self.model, fast, self.inputs)
        if fault is not None:
            raise DenseError(f"accelerated, it would not do the same ({fault})")
        return fast

    def _root(self, ways: Mapping[str, str]) -> nn.Module:
        """A copy of the model with sparse layers."""
        sparse: dict[nn.Module, PackedModule] = {}
        for name in self.names:
            way, layer = ways.get(name, SPARSE), self.model.get_submodule(name)
            twin = self._sparse(name, layer)
            if way not in twin.ways():
                raise InputError(
                    f"{name} cannot run {way!r}: it can run {' or '.join(twin.ways())} "
                    "(winograd is for 3 x 3 convolutions of stride 1 in one group)."
                )
            sparse[layer], twin.way = twin, way
        return with_sparse_layers(self.model, sparse, self.masks)

    def _sparse(self, name: str, layer: nn.Module) -> PackedModule:
        """The sparse counterpart of a layer."""
        own = {key: f"{name}.{key}" for key in layer._parameters}
        masks = {key: self.masks[full] for key, full in own.items() if full in self.masks}
        kind = sparse_layer(layer)
        assert kind is not None  # the names are of those that have one
        return kind(layer, masks)


def _sparse_names(model: nn.Module, masks: Masks, inputs: Any) -> list[str]:
    """The pruned layers that can run sparse; DenseError if there are none."""
    found = {
        name: layer
        for name, layer in model.named_modules()
        if name
        and sparse_layer(layer) is not None
        and any(f"{name}.{key}" in masks for key in layer._parameters)
    }
    needed_whole = _tied(model) | _read_by_torch(model)
    needed_whole |= used_outside(model, found.values(), arguments(model, inputs))
    names = [n for n, layer in found.items() if needed_whole.isdisjoint(layer.parameters())]
    # Of these torch's own attention reads the weights, and only a sparse one calls them.
    outputs = {name for name, layer in found.items() if type(layer) is OUTPUT_PROJECTION}
    names = [name for name in names if name not in outputs or _parent(name) in names]
    if not names:
        kinds = ", ".join(kind.__name__ for kind in SPARSE_LAYERS)
        raise DenseError(
            "no pruned layer of it can run sparse: those that can are "
            f"{kinds} inside a network, with weights of their own"
        )
    return names


def _is_attention(root: nn.Module, name: str) -> bool:
    return isinstance(root.get_submodule(name), SparseAttention)


def _tied(model: nn.Module) -> set[torch.Tensor]:
    """Parameters that two layers share: they must stay one tensor."""
    return {
        model.get_parameter(first)
        for first, owners in parameter_places(model).items()
        if len({(module, name.rpartition(".")[2]) for name, module in owners}) > 1
    }


def _read_by_torch(model: nn.Module) -> set[torch.Tensor]:
    """Parameters that torch reads past their layers: its short cut through a transformer layer.

    Torch's own class is exchanged for one without it, which a user's cannot be.
    """
    kinds = nn.TransformerEncoderLayer, nn.TransformerEncoder
    users = [m for m in model.modules() if isinstance(m, kinds) and type(m) not in kinds]
    return {parameter for module in users for parameter in module.parameters()}


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _traced(model: nn.Module, inputs: Any) -> Graph:
    """The network as a graph with the shape of every tensor.

    A converted graph does not call its modules one by one, so that hooks on them would be lost.
    """
    args, kwargs = arguments(model, inputs)
    if kwargs or not all(isinstance(x, torch.Tensor) and x.ndim for x in args):
        raise UntraceableError("it is called on more than tensors of samples, by position")
    for name, module in model.named_modules():
        if module is not model and hooked(module):
            raise UntraceableError(f"hooks on {name} wait for its calls")
    return trace(model, args, both_modes=True, leaf=lambda m: sparse_layer(m) is not None)
