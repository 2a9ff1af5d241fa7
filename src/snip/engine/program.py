"""A straight network with the addresses of everything, ready for its native call."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch
from torch import nn

from snip.engine.blocked import pair
from snip.engine.kernels.library import vector_floats
from snip.engine.kernels.network import (
    CONV,
    LINEAR,
    MAX_POOL,
    RECTIFIER,
    LayerStruct,
    NativeNetwork,
)
from snip.engine.kernels.pool import Window
from snip.engine.layers import SparseConv2d, SparseLinear
from snip.engine.layout import FEW_IMAGES, native
from snip.engine.straight import Stage

MOST_LANES = 64  # of linear layers: some registers are left for the rest


class Program:
    """The layers of a straight network for one shape of input and number of lanes."""

    def __init__(
        self, root: nn.Module, stages: tuple[Stage, ...], in_shape: tuple[int, ...], lanes: int
    ) -> None:
        self.parameters: list[nn.Parameter] = []
        self.offsets: list[int] = []
        self._alive: list[Any] = []  # what the structs point to
        self._gradients, self._lanes, self._shape = 0, lanes, in_shape
        self._read = np.ones(math.prod(in_shape), dtype=bool)
        layers = [self._layer(stage, root, first=not i) for i, stage in enumerate(stages)]
        self.native = NativeNetwork(layers, lanes, self._gradients, self._read)
        self._addresses = self._now()

    def holds(self) -> bool:
        """Whether the parameters still are where they were, and of the kind they were."""
        return self._addresses == self._now()

    def _now(self) -> list[Any]:
        return [p.data_ptr() if native(p) else None for p in self.parameters]

    def _layer(self, stage: Stage, root: nn.Module, *, first: bool) -> LayerStruct:
        inputs = math.prod(self._shape)
        made = LayerStruct(inputs=inputs, outputs=inputs, kind=RECTIFIER)
        if stage.kind == "pool":
            self._pool(made, stage)
        elif stage.kind != "relu":
            layer: Any = root.get_submodule(stage.module)
            made.relu = layer.relu
            made.values, made.values_at = self._parameter(layer.weight)
            made.bias, made.bias_at = self._parameter(layer.bias)
            (self._linear if stage.kind == "linear" else self._conv)(made, layer, first)
        made.outputs = math.prod(self._shape)
        return made

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
        plans = (index.forward_plan, index.backward_plan, index.weights_plan)
        made.kind = CONV
        made.forward, made.backward, made.weights = (ctypes.addressof(p.struct) for p in plans)
        self._shape = index.out_shape
        self._alive += plans

    def _pool(self, made: LayerStruct, stage: Stage) -> None:
        kernel, stride, padding, dilation, ceil_mode = stage.window
        channels, height, width = self._shape
        window = Window(
            (height, width),
            *(pair(kernel), pair(stride or kernel), pair(padding), pair(dilation), ceil_mode),
        )
        struct = window.struct()
        made.kind, made.window = MAX_POOL, ctypes.addressof(struct)
        self._shape = (channels, *window.out_size)
        self._alive.append(struct)

    def _parameter(self, parameter: nn.Parameter | None) -> tuple[int | None, int]:
        """Its address, and the place of its gradient."""
        if parameter is None:
            return None, -1
        offset = self._gradients
        self.parameters.append(parameter)
        self.offsets.append(offset)
        if not parameter.requires_grad:
            return parameter.data_ptr(), -1
        self._gradients += parameter.numel()
        return parameter.data_ptr(), offset


class Straight:
    """The stages of a network, and the programs made of them so far."""

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self.stages = stages
        self._programs: dict[tuple[Any, ...], Program | None] = {}

    def forward(self, root: nn.Module, x: Any) -> torch.Tensor | None:
        """The network's output without gradients; None where this is not for the native call."""
        if not isinstance(x, torch.Tensor) or x.ndim < 2 or not len(x) or not native(x):
            return None
        program = self.program(root, tuple(x.shape[1:]), self._lanes(len(x), training=False))
        return None if program is None else program.native.forward(x.contiguous())

    def training_program(self, root: nn.Module, shape: torch.Size) -> Program | None:
        """The program to train with, if there are parts enough for every thread."""
        lanes = self._lanes(shape[0], training=True)
        if math.ceil(shape[0] / lanes) < torch.get_num_threads() and self._convolves:
            return None
        return self.program(root, tuple(shape[1:]), lanes)

    def program(self, root: nn.Module, in_shape: tuple[int, ...], lanes: int) -> Program | None:
        """Prepared once; None if the stages do not fit the shape."""
        key = (in_shape, lanes)
        found = self._programs.get(key)
        if key not in self._programs or (found is not None and not found.holds()):
            try:
                found = Program(root, self.stages, in_shape, lanes)
            except ValueError:  # the ordinary way will say what is wrong
                found = None
            if found is not None and not all(map(native, found.parameters)):
                return None
            self._programs[key] = found
        return found

    @property
    def _convolves(self) -> bool:
        return any(stage.kind in ("conv", "pool") for stage in self.stages)

    def _lanes(self, batch: int, *, training: bool) -> int:
        """Of a part: it depends on nothing but the batch, so that sums come out the same."""
        if self._convolves:
            return 1 if batch < FEW_IMAGES and not training else max(FEW_IMAGES, vector_floats())
        return math.ceil(batch / math.ceil(batch / MOST_LANES))

    def __deepcopy__(self, memo: Any) -> Straight:
        return Straight(self.stages)

    def __getstate__(self) -> dict[str, Any]:
        return {"stages": self.stages, "_programs": {}}
