"""Conversions between the three layouts.

rows     [batch, ...]                             what torch uses (NCHW, or [batch, features])
blocks   [ceil(batch / lanes), ..., lanes]        convolutions; zero beyond the batch
columns  [features, batch], the batch contiguous  linear and recurrent layers
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import MOST_LANES
from snip.engine.kernels.library import kernel
from snip.engine.kernels.memory import empty, pointer

LANES = 16


def rows_to_blocks(x: torch.Tensor, *, lanes: int = LANES) -> torch.Tensor:
    """NCHW to [ceil(N / lanes), C, H, W, lanes]."""
    check_lanes(lanes)
    x = x.contiguous()
    out = empty(math.ceil(x.shape[0] / lanes), *x.shape[1:], lanes)
    features, batch = math.prod(x.shape[1:]), x.shape[0]
    _run("rows_to_blocks", _whole(x, "x"), _whole(out, "out"), features, lanes, batch)
    return out


def blocks_to_rows(x: torch.Tensor, batch: int) -> torch.Tensor:
    """The inverse of rows_to_blocks; lanes beyond the batch are dropped."""
    lanes = check_blocks(x, batch, "x")
    out = empty(batch, *x.shape[1:-1])
    features = math.prod(x.shape[1:-1])
    _run("blocks_to_rows", _whole(x, "x"), _whole(out, "out"), features, lanes, batch)
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
    to = columns(out, features, batch, "out")
    _run("blocks_to_columns", _whole(x, "x"), *to, features, lanes, batch)
    return out


def columns_to_blocks(x: torch.Tensor, shape: Sequence[int], *, lanes: int = LANES) -> torch.Tensor:
    """The inverse of blocks_to_columns, to [blocks, *shape, lanes]."""
    check_lanes(lanes)
    x = _rows_contiguous(x)
    features, batch = x.shape
    if features != math.prod(shape):
        raise InputError(f"{features} features do not fill {tuple(shape)}")
    out = empty(math.ceil(batch / lanes), *shape, lanes)
    source = columns(x, features, batch, "x")
    _run("columns_to_blocks", *source, _whole(out, "out"), features, lanes, batch)
    return out


def empty_columns(features: int, batch: int) -> torch.Tensor:
    """An uninitialised [features, batch] whose rows begin on cache lines when they are long."""
    row = batch if batch < LANES else math.ceil(batch / LANES) * LANES
    return empty(features, row)[:, :batch]


def columns(tensor: torch.Tensor | None, rows: int, count: int, name: str) -> tuple[Any, int]:
    """Address, and distance between rows, of a matrix [rows, count] of columns."""
    address = pointer(tensor, (rows, count), name, rows=True)
    return address, 0 if tensor is None else tensor.stride(0)


def check_lanes(lanes: int) -> None:
    """InputError unless blocks can have so many lanes."""
    if not 1 <= lanes <= MOST_LANES or lanes & (lanes - 1):
        raise InputError(f"lanes must be a power of two of at most {MOST_LANES}, not {lanes}")


def check_blocks(x: torch.Tensor, batch: int, name: str) -> int:
    """The lanes of a tensor of blocks that holds so many batch elements."""
    if x.dim() >= 2:
        check_lanes(x.shape[-1])
    if x.dim() < 2 or x.shape[0] != math.ceil(batch / x.shape[-1]):
        raise InputError(
            f"{name} must be [ceil(batch / lanes), ..., lanes] for a batch of {batch}, not "
            f"{tuple(x.shape)}"
        )
    return x.shape[-1]


def _rows_contiguous(x: torch.Tensor) -> torch.Tensor:
    """The matrix, copied unless the numbers of a row lie side by side."""
    if x.dim() != 2:
        raise InputError(f"x must have two dimensions, not {tuple(x.shape)}")
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _transposed(x: torch.Tensor) -> torch.Tensor:
    x = _rows_contiguous(x)
    out = empty(x.shape[1], x.shape[0])
    height, width = x.shape
    source, to = columns(x, height, width, "x"), columns(out, width, height, "out")
    _run("transpose", *source, *to, height, width)
    return out


def _whole(tensor: torch.Tensor, name: str) -> Any:
    """Address of a tensor of whatever shape it has."""
    return pointer(tensor, tensor.shape, name)


def _run(name: str, *arguments: int) -> None:
    kernel(name)(*arguments, torch.get_num_threads())
