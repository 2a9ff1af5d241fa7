"""A straight network in one native call: forward, or loss and all gradients; and SGD's update."""

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_int32, c_int64, c_void_p

import numpy as np
import torch

from snip.engine.kernels.library import empty, kernel

LINEAR, CONV, MAX_POOL, RECTIFIER = range(4)
MOST_LAYERS = 64


class LayerStruct(ctypes.Structure):
    """Mirrors struct Layer of native/network.hpp."""

    _fields_ = (
        *((name, c_int32) for name in ("kind", "relu")),
        *((name, c_int64) for name in ("inputs", "outputs")),  # floats per lane
        *((name, c_void_p) for name in ("forward", "backward", "weights")),
        *((name, c_void_p) for name in ("rowptr", "cols", "t_rowptr", "t_cols", "t_order")),
        *((name, c_void_p) for name in ("window", "values", "bias")),
        *((name, c_int64) for name in ("values_at", "bias_at")),
        *((name, c_void_p) for name in ("bias_kept", "bias_rows")),
        ("bias_count", c_int64),
    )


class NetworkStruct(ctypes.Structure):
    """Mirrors struct Network of native/network.hpp."""

    _fields_ = (
        ("layers", c_void_p),
        *((name, c_int64) for name in ("count", "lanes", "gradients")),
        ("inputs", c_void_p),
        ("runs", c_int64),
    )


class OutcomeStruct(ctypes.Structure):
    """Mirrors struct LossOutcome of native/loss.hpp."""

    _fields_ = (("loss", c_double), ("wrong", c_int64), ("strange", c_int64))


class ParameterStruct(ctypes.Structure):
    """Mirrors struct Parameter of native/update.hpp."""

    _fields_ = (
        *((name, c_void_p) for name in ("values", "momentum")),
        *((name, c_int64) for name in ("offset", "count")),
        *((name, c_float) for name in ("lr", "factor", "decay")),
        ("nesterov", c_int32),
    )


class NativeNetwork:
    """Layers with their addresses, for parts of the batch of so many lanes.

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
        self.outputs = int(layers[-1].outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Contiguous x [batch, ...] -> y [batch, outputs]."""
        y = empty(len(x), self.outputs)
        kernel("network_forward")(
            *(byref(self.struct), x.data_ptr(), y.data_ptr(), len(x), torch.get_num_threads())
        )
        return y


class Gradients:
    """Room for the gradients of a network at one batch size, and the call that fills it."""

    def __init__(self, network: NativeNetwork, batch: int) -> None:
        parts = -(-batch // network.lanes)
        self.network, self.batch = network, batch
        self.partial = empty(parts, network.gradients)
        self.outcomes = (OutcomeStruct * parts)()

    def fill(self, x: torch.Tensor, labels: torch.Tensor) -> OutcomeStruct:
        """The mean loss and its gradients, which stand in `total` then."""
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
