"""Conversions between the three layouts.

rows     [batch, ...]                             what torch uses (NCHW, or [batch, features])
blocks   [ceil(batch / lanes), ..., lanes]        convolutions; zero beyond the batch
columns  [features, batch], the batch contiguous  linear and recurrent layers
"""

import math
from collections.abc import Sequence

import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import MOST_LANES
from snip.engine.kernels.library import empty, kernel

LANES = 16


def rows_to_blocks(x: torch.Tensor, *, lanes: int = LANES) -> torch.Tensor:
    """NCHW to [ceil(N / lanes), C, H, W, lanes]."""
    check_lanes(lanes)
    x = check_float(x, "x").contiguous()
    out = empty(math.ceil(x.shape[0] / lanes), *x.shape[1:], lanes)
    _run("rows_to_blocks", x.data_ptr(), out.data_ptr(), math.prod(x.shape[1:]), lanes, x.shape[0])
    return out


def blocks_to_rows(x: torch.Tensor, batch: int) -> torch.Tensor:
    """The inverse of rows_to_blocks; lanes beyond the batch are dropped."""
    lanes = check_blocks(x, batch, "x")
    out = empty(batch, *x.shape[1:-1])
    _run("blocks_to_rows", x.data_ptr(), out.data_ptr(), math.prod(x.shape[1:-1]), lanes, batch)
    return out


def rows_to_columns(x: torch.Tensor) -> torch.Tensor:
    """[batch, features] to [features, batch]."""
    return _transposed(x)


def columns_to_rows(x: torch.Tensor) -> torch.Tensor:
    """[features, batch] to [batch, features]."""
    return _transposed(x)


def blocks_to_columns(x: torch.Tensor, batch: int) -> torch.Tensor:
    """Flatten [blocks, C, H, W, lanes] to columns [C * H * W, batch]."""
    lanes = check_blocks(x, batch, "x")
    features = math.prod(x.shape[1:-1])
    out = empty_columns(features, batch)
    _run("blocks_to_columns", x.data_ptr(), out.data_ptr(), out.stride(0), features, lanes, batch)
    return out


def columns_to_blocks(x: torch.Tensor, shape: Sequence[int], *, lanes: int = LANES) -> torch.Tensor:
    """The inverse of blocks_to_columns, to [blocks, *shape, lanes]."""
    check_lanes(lanes)
    x = _rows_contiguous(x)
    features, batch = x.shape
    if features != math.prod(shape):
        raise InputError(f"{features} features do not fill {tuple(shape)}")
    out = empty(math.ceil(batch / lanes), *shape, lanes)
    _run("columns_to_blocks", x.data_ptr(), x.stride(0), out.data_ptr(), features, lanes, batch)
    return out


def empty_columns(features: int, batch: int) -> torch.Tensor:
    """An uninitialised [features, batch] whose rows begin on cache lines when they are long."""
    row = batch if batch < LANES else math.ceil(batch / LANES) * LANES
    return empty(features, row)[:, :batch]


def check_float(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The tensor, or InputError unless it is float32 on the CPU."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise InputError(
            f"{name} must be a float32 CPU tensor, not {tensor.dtype} on {tensor.device}"
        )
    return tensor


def check_lanes(lanes: int) -> None:
    """InputError unless blocks can have so many lanes."""
    if not 1 <= lanes <= MOST_LANES or lanes & (lanes - 1):
        raise InputError(f"lanes must be a power of two of at most {MOST_LANES}, not {lanes}")


def check_blocks(x: torch.Tensor, batch: int, name: str) -> int:
    """The lanes of a contiguous tensor of blocks that holds so many batch elements."""
    check_float(x, name)
    if x.dim() >= 2:
        check_lanes(x.shape[-1])
    if x.dim() < 2 or not x.is_contiguous() or x.shape[0] != math.ceil(batch / x.shape[-1]):
        raise InputError(
            f"{name} must be contiguous [ceil(batch / lanes), ..., lanes] for a batch of {batch}, "
            f"not {tuple(x.shape)}"
        )
    return x.shape[-1]


def _rows_contiguous(x: torch.Tensor) -> torch.Tensor:
    """The matrix, copied unless the numbers of a row lie side by side."""
    if check_float(x, "x").dim() != 2:
        raise InputError(f"x must have two dimensions, not {tuple(x.shape)}")
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _transposed(x: torch.Tensor) -> torch.Tensor:
    x = _rows_contiguous(x)
    out = empty(x.shape[1], x.shape[0])
    _run("transpose", x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0), *x.shape)
    return out


def _run(name: str, *arguments: int) -> None:
    kernel(name)(*arguments, torch.get_num_threads())
