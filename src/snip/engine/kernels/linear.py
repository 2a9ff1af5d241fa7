"""Sparse linear layers on columns [features, batch], the batch contiguous."""

import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import ACCUMULATE, RELU
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.library import empty, kernel, pointer, vector


def linear_forward(
    index: LinearIndex,
    values: torch.Tensor,
    x: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    relu: bool = False,
    out: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """y = W x (+ bias) (then ReLU), [out features, batch]; with accumulate, added to `out`."""
    ldx, batch = _check(x, index.columns, None, "x")
    if out is None:
        out = empty(index.rows, batch)
    ldy, _ = _check(out, index.rows, batch, "out")
    kernel("linear_forward")(
        *(*index.pointers[:2], None, vector(values, index.kept, "values"), x.data_ptr(), ldx),
        *(vector(bias, index.rows, "bias"), out.data_ptr(), ldy, index.rows, batch),
        *(RELU * relu | ACCUMULATE * accumulate, torch.get_num_threads()),
    )
    return out


def linear_backward(
    index: LinearIndex,
    values: torch.Tensor,
    x: torch.Tensor,
    dy: torch.Tensor,
    *,
    y: torch.Tensor | None = None,
    dx: torch.Tensor | None = None,
    dw: torch.Tensor | None = None,
    db: torch.Tensor | None = None,
) -> None:
    """Fill whichever of dx [in, batch], dw [kept], db [out] are given; y (after ReLU) masks dy."""
    ldx, batch = _check(x, index.columns, None, "x")
    lddy, _ = _check(dy, index.rows, batch, "dy")
    ldy = 0 if y is None else _check(y, index.rows, batch, "y")[0]
    lddx = 0 if dx is None else _check(dx, index.columns, batch, "dx")[0]
    kernel("linear_backward")(
        *(*index.pointers, vector(values, index.kept, "values"), x.data_ptr(), ldx),
        *(dy.data_ptr(), lddy, pointer(y), ldy, pointer(dx), lddx),
        *(vector(dw, index.kept, "dw"), vector(db, index.rows, "db")),
        *(index.rows, index.columns, batch, torch.get_num_threads()),
    )


def _check(tensor: torch.Tensor, rows: int, batch: int | None, name: str) -> tuple[int, int]:
    """Distance between rows, and the batch, of a tensor that must be [rows, batch]."""
    try:
        height, width = tensor.shape
        row, column = tensor.stride()
    except ValueError:
        height = width = row = column = -1
    wrong = height != rows or (batch is not None and width != batch)
    if wrong or (column != 1 and width > 1) or tensor.dtype is not torch.float32:
        raise InputError(
            f"{name} must be float32 [{rows}, {'batch' if batch is None else batch}] with the "
            f"batch contiguous, not {tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}"
        )
    return row, width
