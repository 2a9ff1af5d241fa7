"""Sparse linear layers on columns [features, batch] and on plain activations [batch, features]."""

import torch

from snip.common.errors import InputError
from snip.engine.kernels.constants import ACCUMULATE, RELU, TURNED
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


def plain_forward(
    index: LinearIndex,
    values: torch.Tensor,
    x: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    turned: bool = False,
) -> torch.Tensor:
    """x [..., in] -> y [..., out], y = x W^T (+ bias) with the weights W [out, in].

    With `turned`, the index is of weights [in, out].
    """
    inputs, outputs = _sizes(index, turned)
    # No view of another tensor: one that a differentiable function returns cannot be overwritten.
    y = empty(*x.shape[:-1], outputs)
    rows, made = as_rows(x), y.view(-1, outputs)
    batch = len(rows)
    rowptr, cols, t_rowptr, t_cols, t_order = index.pointers
    forward = (t_rowptr, t_cols, t_order) if turned else (rowptr, cols, None)
    kernel("plain_forward")(
        *(*forward, pointer(values, (index.kept,), "values")),
        *(*columns(rows, batch, inputs, "x"), pointer(bias, (outputs,), "bias")),
        *(*columns(made, batch, outputs, "y"), outputs, inputs, batch, torch.get_num_threads()),
    )
    return y


def plain_backward(
    index: LinearIndex,
    values: torch.Tensor,
    x: torch.Tensor,
    dy: torch.Tensor,
    *,
    dx: torch.Tensor | None = None,
    dw: torch.Tensor | None = None,
    db: torch.Tensor | None = None,
    turned: bool = False,
) -> None:
    """Fill whichever of dx [batch, in], dw [kept], db [out] are given; x and dy are matrices."""
    inputs, outputs = _sizes(index, turned)
    batch = len(x)
    rowptr, cols, t_rowptr, t_cols, t_order = index.pointers
    back = (rowptr, cols, None) if turned else (t_rowptr, t_cols, t_order)
    kernel("plain_backward")(
        *(rowptr, cols, *back, pointer(values, (index.kept,), "values")),
        *(*columns(x, batch, inputs, "x"), *columns(dy, batch, outputs, "dy")),
        *columns(dx, batch, inputs, "dx"),
        *(pointer(dw, (index.kept,), "dw"), pointer(db, (outputs,), "db")),
        *(inputs, outputs, batch, TURNED * turned, torch.get_num_threads()),
    )


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """[..., features] -> [N, features] with the features side by side, copied only where needed."""
    features = x.shape[-1]
    x = x.resolve_neg().reshape(x.numel() // max(features, 1), features)
    return x if x.stride(1) == 1 else x.contiguous()


def unpack_weights(index: LinearIndex, values: torch.Tensor, dense: torch.Tensor) -> None:
    """Put the surviving weights in their places of `dense` [rows, columns], and leave the rest."""
    kernel("unpack_weights")(
        *(*index.pointers[:2], pointer(values, (index.kept,), "values")),
        *(pointer(dense, (index.rows, index.columns), "dense"), index.rows, index.columns),
    )


def pack_weights(index: LinearIndex, dense: torch.Tensor) -> torch.Tensor:
    """The surviving ones of all weights [rows, columns]."""
    values = empty(index.kept)
    kernel("pack_weights")(
        *(*index.pointers[:2], pointer(dense, (index.rows, index.columns), "dense")),
        *(pointer(values, (index.kept,), "values"), index.rows, index.columns),
    )
    return values


def _sizes(index: LinearIndex, turned: bool) -> tuple[int, int]:
    """Inputs and outputs of a layer."""
    return (index.rows, index.columns) if turned else (index.columns, index.rows)
