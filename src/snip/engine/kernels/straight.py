"""A straight network in one native call: forward, or loss and all gradients; and SGD's update."""

import ctypes
from collections.abc import Sequence
from ctypes import byref

import numpy as np
import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import CONV, LINEAR, MAX_POOL, MOST_LAYERS, RECTIFIER
from snip.engine.kernels.library import empty, kernel
from snip.engine.kernels.structs import LayerStruct, NetworkStruct, OutcomeStruct, ParameterStruct

__all__ = [
    "CONV",
    "LINEAR",
    "MAX_POOL",
    "MOST_LAYERS",
    "RECTIFIER",
    "Gradients",
    "LayerStruct",
    "NativeNetwork",
    "ParameterStruct",
    "sgd_update",
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
        self.inputs, self.outputs = int(layers[0].inputs), int(layers[-1].outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Contiguous x [batch, ...] -> y [batch, outputs]."""
        self.check(x)
        y = empty(len(x), self.outputs)
        kernel("network_forward")(
            *(byref(self.struct), x.data_ptr(), y.data_ptr(), len(x), torch.get_num_threads())
        )
        return y

    def check(self, x: torch.Tensor) -> None:
        """InputError unless x holds rows of this network's inputs."""
        wrong = x.dtype is not torch.float32 or not x.is_cpu or not x.is_contiguous()
        if wrong or x.numel() != len(x) * self.inputs:
            raise InputError(
                f"x must be contiguous float32 rows of {self.inputs} features on the CPU, not "
                f"{x.dtype} {tuple(x.shape)} on {x.device}"
            )


class Gradients:
    """Room for the gradients of a network at one batch size, and the call that fills it."""

    def __init__(self, network: NativeNetwork, batch: int) -> None:
        parts = -(-batch // network.lanes)
        self.network, self.batch = network, batch
        self.partial = empty(parts, network.gradients)
        self.outcomes = (OutcomeStruct * parts)()

    def fill(self, x: torch.Tensor, labels: torch.Tensor) -> OutcomeStruct:
        """Returns the mean loss; its gradients stand in `total` then."""
        self.network.check(x)
        if len(x) != self.batch or labels.shape != (self.batch,) or labels.dtype != torch.int64:
            raise InputError(
                f"{len(x)} rows and labels {labels.dtype} {tuple(labels.shape)} are no batch of "
                f"{self.batch}"
            )
        kernel("network_gradients")(
            *(byref(self.network.struct), x.data_ptr(), labels.data_ptr()),
            *(self.partial.data_ptr(), self.outcomes, self.batch, torch.get_num_threads()),
        )
        return self.outcomes[0]

    @property
    def total(self) -> torch.Tensor:
        """[gradients]"""
        return self.partial[0]


def sgd_update(parameters: "ctypes.Array[ParameterStruct]", gradients: torch.Tensor) -> None:
    """One step of SGD on all parameters."""
    kernel("sgd_update")(parameters, len(parameters), gradients.data_ptr())


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
