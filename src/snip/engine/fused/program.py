"""A straight network as the native call takes it: layers with the addresses of their memory."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from snip.anatomy.accelerated import Accelerated
from snip.engine.fused.stages import Stage
from snip.engine.kernels.library import vector_floats
from snip.engine.kernels.memory import memory_of, pointer, readable
from snip.engine.kernels.straight import (
    CONV,
    LINEAR,
    MAX_POOL,
    RECTIFIER,
    LayerStruct,
    NativeNetwork,
)
from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.layouts import FEW_IMAGES, native
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.pool import pool_window

LINEAR_LANES = 64  # at most: the sums of linear layers then leave some vector registers free
MOST_PROGRAMS = 16  # shapes of batches whose program is kept


class Program:
    """The layers of a straight network for one shape of input and number of lanes."""

    def __init__(
        self,
        root: nn.Module,
        stages: tuple[Stage, ...],
        in_shape: tuple[int, ...],
        lanes: int,
        *,
        training: bool,
    ) -> None:
        self.places: dict[nn.Parameter, int] = {}  # each trained parameter's place in the gradient
        self._root, self._training = root, training
        self._owners: dict[str, nn.Module] = {}
        self._alive: list[Any] = []  # keeps the memory that the structs point to
        self._gradients, self._lanes, self._shape = 0, lanes, in_shape
        self._read = np.ones(math.prod(in_shape), dtype=bool)
        layers = [self._layer(stage, root, first=not i) for i, stage in enumerate(stages)]
        self.native = NativeNetwork(layers, lanes, self._gradients, self._read)
        self._state = self._now()

    def holds(self) -> bool:
        """Whether modules, parameters and their memory are still those it was made of."""
        return self._state == self._now()

    def _now(self) -> list[Any]:
        state: list[Any] = []  # a plain loop: this runs before every step
        for name, module in self._owners.items():
            state.append(self._root.get_submodule(name) is module)
            for p in module._parameters.values():
                if p is not None:
                    state += (id(p), memory_of(p), p.requires_grad)
        return state

    def _layer(self, stage: Stage, root: nn.Module, *, first: bool) -> LayerStruct:
        inputs = math.prod(self._shape)
        made = LayerStruct(inputs=inputs, outputs=inputs, kind=RECTIFIER)
        if stage.kind == "pool":
            self._pool(made, stage)
        elif stage.kind != "relu":
            layer: Any = root.get_submodule(stage.module)
            self._owners[stage.module] = layer
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
        address = pointer(parameter, (count,), "a parameter")
        if not parameter.requires_grad:
            return address, -1
        offset, self._gradients = self._gradients, self._gradients + room
        self.places[parameter] = offset
        return address, offset


class Straight:
    """The stages of a network for inputs of one rank, and the programs made of them so far."""

    def __init__(self, stages: tuple[Stage, ...], rank: int) -> None:
        self.stages, self.rank = stages, rank
        self._programs: dict[tuple[Any, ...], Program] = {}

    def forward(self, root: nn.Module, x: Any) -> torch.Tensor | None:
        """The network's output without gradients; None if the native call does not take `x`."""
        if not self._takes(x):
            return None
        program = self._program(root, x.shape, training=False)
        return None if program is None else program.native.forward(x.contiguous())

    def training_program(self, root: nn.Module, shape: torch.Size) -> Program | None:
        """The program to train on a batch of this shape that `takes_batch` allows, if any."""
        return self._program(root, shape, training=True)

    def takes_batch(self, images: torch.Tensor, labels: torch.Tensor) -> bool:
        """Whether the native call reads such a batch and computes all the gradients it asks for."""
        # torch refuses to train on images that were made in inference mode.
        if images.requires_grad or images.is_inference() or not readable(labels, torch.int64):
            return False
        return self._takes(images) and labels.shape == images.shape[:1]

    def _takes(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor) and x.ndim == self.rank and len(x) > 0 and native(x)

    def _program(self, root: nn.Module, shape: torch.Size, *, training: bool) -> Program | None:
        """The program for inputs of this shape, prepared once; None if the layers do not fit it."""
        key = (shape[1:], self._lanes(shape[0], training=training), training)
        found = self._programs.get(key)
        if found is None or not found.holds():
            try:
                found = Program(root, self.stages, tuple(shape[1:]), key[1], training=training)
            except ValueError:  # the user's forward will say what is wrong, if anything is
                return None
            if key not in self._programs and len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]  # the oldest
            self._programs[key] = found
        return found

    def _lanes(self, batch: int, *, training: bool) -> int:
        """Samples computed side by side: by batch size alone, so that equal runs add up equally."""
        if any(stage.kind in ("conv", "pool") for stage in self.stages):
            return 1 if batch < FEW_IMAGES and not training else max(FEW_IMAGES, vector_floats())
        return math.ceil(batch / math.ceil(batch / LINEAR_LANES))

    def __deepcopy__(self, memo: Any) -> Straight:
        return Straight(self.stages, self.rank)

    def __getstate__(self) -> dict[str, Any]:
        return {"stages": self.stages, "rank": self.rank, "_programs": {}}


def straight_of(model: nn.Module) -> Straight | None:
    """What runs an accelerated network as one native call; None for any other network."""
    return model.snip_conversion.straight if isinstance(model, Accelerated) else None
