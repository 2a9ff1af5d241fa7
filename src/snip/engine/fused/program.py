"""A straight network as the native call takes it: layers with the addresses of their memory."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from snip.engine.fused.node import Body
from snip.engine.fused.optimizers import step_natively
from snip.engine.fused.stages import Stage
from snip.engine.kernels.memory import Reused, pointer
from snip.engine.kernels.straight import (
    CONV,
    LINEAR,
    MAX_POOL,
    RECTIFIER,
    LayerStruct,
    NativeNetwork,
)
from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.pool import pool_window


class Program:
    """The layers of a straight network for one shape of input and number of lanes."""

    def __init__(
        self,
        root: nn.Module,
        stages: tuple[Stage, ...],
        in_shape: tuple[int, ...],
        lanes: int,
        memory: Reused,
        *,
        training: bool,
    ) -> None:
        self.parameters: list[nn.Parameter] = []
        self.places: dict[nn.Parameter, int] = {}  # each trained parameter's place in the gradient
        self._pieces: list[tuple[int, int]] = []  # each one's offset in it (-1: none), and length
        self._training = training
        self._links: list[tuple[nn.Module, str, str, Any]] = []  # modules and parameters in place
        self._alive: list[Any] = []  # keeps the memory that the structs point to
        self._gradients, self._lanes, self._shape = 0, lanes, in_shape
        self._read = np.ones(math.prod(in_shape), dtype=bool)
        layers = [self._layer(stage, root, first=not i) for i, stage in enumerate(stages)]
        self.native = NativeNetwork(layers, lanes, self._gradients, self._read)
        self.body = Body(self.native, self.parameters, self._pieces, memory, self._alive)
        self._trained = [(p, p in self.places) for p in self.parameters]
        if training:
            step_natively(self.places)

    def holds(self) -> bool:
        """Whether modules, parameters and their memory are still those it was made of."""
        for owner, kind, name, value in self._links:  # plain loops: this runs before every step
            if getattr(owner, kind).get(name) is not value:
                return False
        for p, trained in self._trained:
            if p.requires_grad is not trained:
                return False
        return self.body.reads(self.parameters)

    def differentiable(self, x: torch.Tensor) -> torch.Tensor:
        """The network's output for contiguous x, with gradients for its trained parameters."""
        return self.body.forward(x, self.parameters)

    def _module(self, root: nn.Module, name: str) -> Any:
        """A layer by its name; from now on it must stay where it is, with its parameters."""
        module = root
        for key in name.split("."):
            child = module.get_submodule(key)
            self._links.append((module, "_modules", key, child))
            module = child
        self._links += [(module, "_parameters", key, p) for key, p in module._parameters.items()]
        return module

    def _layer(self, stage: Stage, root: nn.Module, *, first: bool) -> LayerStruct:
        inputs = math.prod(self._shape)
        made = LayerStruct(inputs=inputs, outputs=inputs, kind=RECTIFIER)
        if stage.kind == "pool":
            self._pool(made, stage)
        elif stage.kind != "relu":
            layer = self._module(root, stage.module)
            made.relu = layer.relu
            kept = layer.packed["weight"].kept
            made.values, made.values_at = self._parameter(layer.weight, kept, kept)
            self._bias(made, layer)
            (self._linear if stage.kind == "linear" else self._conv)(made, layer, first)
        made.outputs = math.prod(self._shape)
        return made

    def _bias(self, made: LayerStruct, layer: Any) -> None:
        packed = layer.packed.get("bias")
        if layer.bias is None or packed is None:
            made.bias_at = -1
            return
        made.bias, made.bias_at = self._parameter(layer.bias, packed.kept, packed.total)
        if packed.kept < packed.total:
            dense = torch.zeros(packed.total, dtype=torch.float32, device="cpu")
            rows = packed.positions.to(torch.int32)
            made.bias_kept, made.bias = made.bias, pointer(dense, dense.shape, "the bias")
            made.bias_rows = pointer(rows, (packed.kept,), "the bias's rows", dtype=torch.int32)
            made.bias_count = packed.kept
            self._alive += [dense, rows]

    def _linear(self, made: LayerStruct, layer: SparseLinear, first: bool) -> None:
        index = layer.index
        if index.columns != made.inputs:
            raise ValueError(f"{made.inputs} features meet a layer of {index.columns}")
        made.kind = LINEAR
        made.rowptr, made.cols, made.t_rowptr, made.t_cols, made.t_order = index.pointers
        if first:
            self._read = np.diff(index.t_rowptr.numpy()) > 0
        self._shape = (index.rows,)
        self._alive.append(index)

    def _conv(self, made: LayerStruct, layer: SparseConv2d, first: bool) -> None:
        channels, height, width = self._shape
        index = layer.index((channels, height, width), self._lanes)
        plans = [index.forward_plan]
        if self._training:  # inference needs the forward plan only
            plans += [index.backward_plan, index.weights_plan]
            made.backward, made.weights = (ctypes.addressof(plan.struct) for plan in plans[1:])
        made.kind, made.forward = CONV, ctypes.addressof(index.forward_plan.struct)
        self._shape = index.out_shape
        self._alive += plans

    def _pool(self, made: LayerStruct, stage: Stage) -> None:
        channels, height, width = self._shape
        window = pool_window((height, width), *stage.window)
        struct = window.struct()
        made.kind, made.window = MAX_POOL, ctypes.addressof(struct)
        self._shape = (channels, *window.out_size)
        self._alive.append(struct)

    def _parameter(self, parameter: nn.Parameter, count: int, room: int) -> tuple[Any, int]:
        """The address of its values, and its place in the gradient (-1: not trained).

        `room` is how many numbers of the gradient it needs while that is computed.
        """
        if not parameter.is_leaf:
            raise ValueError("a parameter that is computed has no gradient of its own")
        address = pointer(parameter, (count,), "a parameter")
        self.parameters.append(parameter)
        if not parameter.requires_grad:
            self._pieces.append((-1, count))
            return address, -1
        self._pieces.append((self._gradients, count))
        offset, self._gradients = self._gradients, self._gradients + room
        self.places[parameter] = offset
        return address, offset
