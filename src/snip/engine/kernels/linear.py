"""Sparse linear layers on feature-major activations [features, batch], the batch contiguous."""

import torch

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.library import kernel, pointer
from snip.errors import InputError

RELU, ACCUMULATE = 1, 2


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
    _check(x, index.columns, "x")
    if out is None:
        out = torch.empty(index.rows, x.shape[1])
    _check(out, index.rows, "out", x.shape[1])
    kernel("linear_forward")(
        *(pointer(index.rowptr), pointer(index.cols), None, _values(values, index)),
        *(pointer(x), x.stride(0), pointer(bias), pointer(out), out.stride(0)),
        *(index.rows, x.shape[1], RELU * relu | ACCUMULATE * accumulate),
        torch.get_num_threads(),
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
    batch = x.shape[1]
    _check(x, index.columns, "x")
    _check(dy, index.rows, "dy", batch)
    for name, tensor, rows in (("y", y, index.rows), ("dx", dx, index.columns)):
        if tensor is not None:
            _check(tensor, rows, name, batch)
    kernel("linear_backward")(
        *map(pointer, (index.rowptr, index.cols, index.t_rowptr, index.t_cols, index.t_order)),
        *(_values(values, index), pointer(x), x.stride(0), pointer(dy), dy.stride(0)),
        *(pointer(y), 0 if y is None else y.stride(0)),
        *(pointer(dx), 0 if dx is None else dx.stride(0)),
        *(None if dw is None else _values(dw, index), pointer(db)),
        *(index.rows, index.columns, batch, torch.get_num_threads()),
    )


def _check(tensor: torch.Tensor, rows: int, name: str, batch: int | None = None) -> None:
    wanted = (rows, tensor.shape[-1] if batch is None else batch)
    scattered = tensor.stride(-1) != 1 and tensor.shape[-1] > 1
    if tensor.dtype != torch.float32 or tensor.shape != wanted or scattered:
        raise InputError(
            f"{name} must be float32 [{rows}, {'batch' if batch is None else batch}] with the "
            f"batch contiguous, not {tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}"
        )


def _values(values: torch.Tensor, index: LinearIndex) -> int:
    if values.dtype != torch.float32 or values.shape != (index.kept,) or values.stride(0) != 1:
        raise InputError(
            f"values must be float32 [{index.kept}] contiguous, not {values.dtype} "
            f"{tuple(values.shape)}"
        )
    return values.data_ptr()
