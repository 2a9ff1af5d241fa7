"""A straight network in one native call: forward, backward or both."""

import ctypes
from collections.abc import Sequence
from ctypes import byref
from functools import cached_property

import numpy as np
import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import CONV, LINEAR, MAX_POOL, MOST_LAYERS, RECTIFIER
from snip.engine.kernels.library import kernel, kernel_address
from snip.engine.kernels.memory import Reused, empty, made, pointer
from snip.engine.kernels.structs import LayerStruct, NetworkStruct, OutcomeStruct

__all__ = [
    "CONV",
    "LINEAR",
    "MAX_POOL",
    "MOST_LAYERS",
    "RECTIFIER",
    "Gradients",
    "LayerStruct",
    "NativeNetwork",
]


class NativeNetwork:
    """Layers with their addresses, run on parts of the batch of so many lanes.

    `used` says which input features anything reads. Whoever makes it keeps what the layers point
    to alive.
    """

    def __init__(
        self, layers: Sequence[LayerStruct], lanes: int, gradients: int, used: np.ndarray
    ) -> None:
        self.layers = (LayerStruct * len(layers))(*layers)
        self.lanes, self.gradients = lanes, gradients
        self.runs = _runs(used)
        self.struct = NetworkStruct(
            ctypes.addressof(self.layers),
            *(len(layers), lanes, gradients),
            *(self.runs.ctypes.data, len(self.runs)),
        )
        self._struct = byref(self.struct)
        self.inputs, self.outputs = int(layers[0].inputs), int(layers[-1].outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Contiguous x [batch, ...] -> y [batch, outputs]."""
        batch = x.shape[0]
        y, at = made(batch, self.outputs)
        kernel("network_forward")(self._struct, self.pointer(x), at, batch, torch.get_num_threads())
        return y

    def training_forward(
        self, x: torch.Tensor, memory: Reused
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same y, and what `backward` reads again, which is put into `memory`."""
        batch = x.shape[0]
        y, at = made(batch, self.outputs)
        saved, saved_at = memory.made(self.parts(batch) * self._room)
        kernel("network_training_forward")(
            *(self._struct, self.pointer(x), at, saved_at, batch, torch.get_num_threads())
        )
        return y, saved

    def backward(self, saved: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        """The gradients of all parameters in one row."""
        batch = dy.shape[0]
        gradients, at = made(self.gradients)
        kernel("network_backward")(
            self._struct,
            pointer(saved, (self.parts(batch) * self._room,), "saved"),
            pointer(dy, (batch, self.outputs), "dy"),
            *(at, batch, torch.get_num_threads()),
        )
        return gradients

    def node_arguments(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Addresses and sizes for the node of autograd in C++ (native/torch/node.cpp)."""
        kernels = map(kernel_address, ("network_training_forward", "network_backward"))
        sizes = (self.lanes, self._room, self.inputs, self.outputs, self.gradients)
        return (ctypes.addressof(self.struct), *kernels), sizes

    def parts(self, batch: int) -> int:
        """How many parts a batch is run in."""
        return -(-batch // self.lanes)

    @cached_property
    def _room(self) -> int:
        """Numbers that each part of the batch keeps for `backward`."""
        floats = ctypes.c_int64()
        kernel("network_room")(byref(self.struct), byref(floats))
        return floats.value

    def pointer(self, x: torch.Tensor) -> int | None:
        """Address of a batch; InputError unless it holds rows of this network's inputs."""
        if x.numel() != x.shape[0] * self.inputs:
            raise InputError(f"x must have rows of {self.inputs} features, not {list(x.shape)}")
        return pointer(x, x.shape, "x")


class Gradients:
    """Room for the gradients of a network at one batch size, and the call that fills it."""

    def __init__(self, network: NativeNetwork, batch: int) -> None:
        self.network, self.batch = network, batch
        self.total = empty(network.gradients)  # of all parameters in one row, after `fill`
        self.outcomes = (OutcomeStruct * network.parts(batch))()

    def fill(self, x: torch.Tensor, labels: torch.Tensor) -> OutcomeStruct:
        """Returns the mean loss; its gradients stand in `total` then."""
        if len(x) != self.batch or len(labels) != self.batch:
            raise InputError(f"{len(x)} rows and {len(labels)} labels are no batch of {self.batch}")
        kernel("network_gradients")(
            *(byref(self.network.struct), self.network.pointer(x)),
            pointer(labels, (self.batch,), "labels", dtype=torch.int64),
            pointer(self.total, self.total.shape, "total"),
            *(self.outcomes, self.batch, torch.get_num_threads()),
        )
        return self.outcomes[0]


def _runs(used: np.ndarray) -> np.ndarray:
    """[first, last) of the runs of used features; gaps of less than a cache line are no gaps."""
    edges = np.flatnonzero(np.diff(used.astype(np.int8), prepend=0, append=0)).reshape(-1, 2)
    merged: list[list[int]] = []
    for first, last in edges.tolist():
        if merged and first - merged[-1][1] < 16:
            merged[-1][1] = last
        else:
            merged.append([first, last])
    return np.array(merged, dtype=np.int32).reshape(-1, 2)
