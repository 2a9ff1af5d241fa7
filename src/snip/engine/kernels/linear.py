"""Sparse linear layers on columns [features, batch], the batch contiguous."""

import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import ACCUMULATE, RELU
from snip.engine.kernels.conversions import columns
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.library import kernel
from snip.engine.kernels.memory import empty, pointer


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
    batch = _batch(x)
    if out is None:
        out = empty(index.rows, batch)
    kernel("linear_forward")(
        *(*index.pointers[:2], None, pointer(values, (index.kept,), "values")),
        *columns(x, index.columns, batch, "x"),
        *(pointer(bias, (index.rows,), "bias"), *columns(out, index.rows, batch, "out")),
        *(index.rows, batch),
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
    batch = _batch(x)
    kernel("linear_backward")(
        *(*index.pointers, pointer(values, (index.kept,), "values")),
        *(*columns(x, index.columns, batch, "x"), *columns(dy, index.rows, batch, "dy")),
        *(*columns(y, index.rows, batch, "y"), *columns(dx, index.columns, batch, "dx")),
        *(pointer(dw, (index.kept,), "dw"), pointer(db, (index.rows,), "db")),
        *(index.rows, index.columns, batch, torch.get_num_threads()),
    )


def _batch(x: torch.Tensor) -> int:
    if x.dim() != 2:
        raise InputError(f"x must be columns [features, batch], not {list(x.shape)}")
    return x.shape[1]
