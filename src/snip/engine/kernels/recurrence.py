"""Sparse LSTM and GRU over a whole sequence, as columns: column t * batch + b is step t of b.

The products with the inputs of all steps are one `linear_forward` each, done before; so is the
gradient of the weights, one `linear_backward` over all columns, done after. Here is what lies
between: the recurrence and the gates.
"""

import torch

from snip.common.errors import InputError
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.library import empty, kernel, pointer, vector

Tensor = torch.Tensor


def lstm_forward(
    index: LinearIndex, values: Tensor, gates: Tensor, h: Tensor, c: Tensor, batch: int
) -> None:
    """Run the steps in place; `index` and `values` are the hidden-to-hidden weights [4h, h].

    gates [4h, steps * batch]: in W_ih x + b_ih + b_hh, out the gates i, f, g, o.
    h, c [h, (steps + 1) * batch]: the first `batch` columns are the initial state.
    """
    hidden, steps = _shape(index, values, gates, batch, 4)
    _check(h, hidden, (steps + 1) * batch, "h")
    _check(c, hidden, (steps + 1) * batch, "c")
    kernel("lstm_forward")(
        *map(pointer, (index.rowptr, index.cols, values, gates)),
        *(gates.stride(0), pointer(h), h.stride(0), pointer(c), c.stride(0)),
        *(hidden, batch, steps, torch.get_num_threads()),
    )


def lstm_backward(
    index: LinearIndex,
    values: Tensor,
    gates: Tensor,
    c: Tensor,
    dh: Tensor | None,
    carry_h: Tensor,
    carry_c: Tensor,
    batch: int,
) -> Tensor:
    """Gradient of the gates before their activation, [4h, steps * batch].

    dh [h, steps * batch]: gradient of every output h, None for zero. carry_h, carry_c [h, batch]:
    in the gradient of the last h and c, out that of the initial ones.
    """
    hidden, steps = _shape(index, values, gates, batch, 4)
    _check(c, hidden, (steps + 1) * batch, "c")
    _check_gradients(hidden, steps, batch, dh, carry_h, carry_c)
    dgates = _empty_as(gates)
    kernel("lstm_backward")(
        *map(pointer, (index.t_rowptr, index.t_cols, index.t_order, values, gates, dgates)),
        *(gates.stride(0), pointer(c), c.stride(0), pointer(dh), 0 if dh is None else dh.stride(0)),
        *(pointer(carry_h), pointer(carry_c), carry_h.stride(0), hidden, batch, steps),
        torch.get_num_threads(),
    )
    return dgates


def gru_forward(
    index: LinearIndex,
    values: Tensor,
    bias: Tensor | None,
    from_x: Tensor,
    h: Tensor,
    batch: int,
) -> Tensor:
    """Run the steps in place; `index`, `values`, `bias` are W_hh [3h, h] and b_hh. Returns from_h.

    from_x [3h, steps * batch]: in W_ih x + b_ih, out the gates r, z, n. from_h, of the same shape,
    is W_hh h + b_hh, which the backward pass needs. h as in lstm_forward.
    """
    hidden, steps = _shape(index, values, from_x, batch, 3)
    _check(h, hidden, (steps + 1) * batch, "h")
    from_h = _empty_as(from_x)
    biases = vector(bias, 3 * hidden, "bias")
    kernel("gru_forward")(
        *map(pointer, (index.rowptr, index.cols, values)),
        *(biases, pointer(from_x), pointer(from_h)),
        *(from_x.stride(0), pointer(h), h.stride(0), hidden, batch, steps),
        torch.get_num_threads(),
    )
    return from_h


def gru_backward(
    index: LinearIndex,
    values: Tensor,
    from_x: Tensor,
    from_h: Tensor,
    h: Tensor,
    dh: Tensor | None,
    carry: Tensor,
    batch: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of W_ih x + b_ih and of W_hh h + b_hh, [3h, steps * batch]; carry as in LSTM."""
    hidden, steps = _shape(index, values, from_x, batch, 3)
    _check(h, hidden, (steps + 1) * batch, "h")
    _check_gradients(hidden, steps, batch, dh, carry)
    if from_h.shape != from_x.shape or from_h.stride() != from_x.stride():
        raise InputError("from_h must be what gru_forward returned for this from_x")
    d_x = _empty_as(from_x)
    d_h = _empty_as(from_x)
    kernel("gru_backward")(
        *map(pointer, (index.t_rowptr, index.t_cols, index.t_order, values, from_x, from_h)),
        *(pointer(d_x), pointer(d_h), from_x.stride(0), pointer(h), h.stride(0), pointer(dh)),
        *(0 if dh is None else dh.stride(0), pointer(carry), carry.stride(0)),
        *(hidden, batch, steps, torch.get_num_threads()),
    )
    return d_x, d_h


def _empty_as(columns: Tensor) -> Tensor:
    """Of the same shape, with the same distance between rows."""
    return empty(columns.shape[0], columns.stride(0))[:, : columns.shape[1]]


def _shape(
    index: LinearIndex, values: Tensor, gates: Tensor, batch: int, count: int
) -> tuple[int, int]:
    hidden = index.columns
    if batch < 1:
        raise InputError(f"a batch has at least one element, not {batch}")
    vector(values, index.kept, "values")
    if index.rows != count * hidden:
        raise InputError(
            f"a [{index.rows}, {index.columns}] mask is none of recurrent weights: those are "
            f"[{count} * hidden, hidden]"
        )
    steps = gates.shape[1] // batch
    _check(gates, index.rows, steps * batch, "gates")
    return hidden, steps


def _check_gradients(
    hidden: int, steps: int, batch: int, dh: Tensor | None, *carries: Tensor
) -> None:
    if dh is not None:
        _check(dh, hidden, steps * batch, "dh")
    for carry in carries:
        _check(carry, hidden, batch, "carry")
        if carry.stride(0) != carries[0].stride(0):
            raise InputError("carry_h and carry_c must have the same strides")


def _check(tensor: Tensor, rows: int, columns: int, name: str) -> None:
    if tensor.dtype != torch.float32 or tensor.shape != (rows, columns) or tensor.stride(1) != 1:
        raise InputError(
            f"{name} must be float32 [{rows}, {columns}] with contiguous rows, not "
            f"{tensor.dtype} {tuple(tensor.shape)}, strides {tensor.stride()}"
        )
