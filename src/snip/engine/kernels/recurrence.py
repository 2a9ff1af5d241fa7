"""Sparse LSTM and GRU over a whole sequence, as columns: all of the first step, then the next.

Sequences of different lengths stand in order of falling length, so that a step has the first few of
the batch: `sizes` (int64 [steps]) says how many, and None that every step has all of them.

The products with the inputs of all steps are one `linear_forward` each, done before; so is the
gradient of the weights, one `linear_backward` over all columns, done after. Here is what lies
between: the recurrence and the gates.
"""

from typing import Any

import torch

from snip.common.errors import InputError
from snip.engine.kernels.conversions import columns
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.library import kernel
from snip.engine.kernels.memory import empty, pointer

Tensor = torch.Tensor


def lstm_forward(
    index: LinearIndex,
    values: Tensor,
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    batch: int,
    *,
    sizes: Tensor | None = None,
) -> None:
    """Run the steps in place; `index` and `values` are the hidden-to-hidden weights [4h, h].

    gates [4h, columns]: in W_ih x + b_ih + b_hh, out the gates i, f, g, o.
    h, c [h, batch + columns]: the first `batch` columns are the initial state.
    """
    hidden, steps, count = _shape(index, gates, batch, sizes, 4)
    states = batch + count
    kernel("lstm_forward")(
        *(*index.pointers[:2], pointer(values, (index.kept,), "values")),
        *columns(gates, 4 * hidden, count, "gates"),
        *(*columns(h, hidden, states, "h"), *columns(c, hidden, states, "c")),
        *(hidden, batch, steps, _sizes(sizes), torch.get_num_threads()),
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
    *,
    sizes: Tensor | None = None,
) -> Tensor:
    """Gradient of the gates before their activation, [4h, columns].

    dh [h, columns]: gradient of every output h, None for zero. carry_h, carry_c [h, batch]:
    in the gradient of the last h and c, out that of the initial ones.
    """
    hidden, steps, size = _shape(index, gates, batch, sizes, 4)
    dgates = _empty_as(gates)
    kernel("lstm_backward")(
        *(*index.pointers[2:], pointer(values, (index.kept,), "values")),
        *_alike((gates, dgates), 4 * hidden, size, "gates"),
        *(*columns(c, hidden, size + batch, "c"), *columns(dh, hidden, size, "dh")),
        *(*_alike((carry_h, carry_c), hidden, batch, "carry"), hidden, batch, steps),
        *(_sizes(sizes), torch.get_num_threads()),
    )
    return dgates


def gru_forward(
    index: LinearIndex,
    values: Tensor,
    bias: Tensor | None,
    from_x: Tensor,
    h: Tensor,
    batch: int,
    *,
    sizes: Tensor | None = None,
) -> Tensor:
    """Run the steps in place; `index`, `values`, `bias` are W_hh [3h, h] and b_hh. Returns from_h.

    from_x [3h, columns]: in W_ih x + b_ih, out the gates r, z, n. from_h, of the same shape,
    is W_hh h + b_hh, which the backward pass needs. h as in lstm_forward.
    """
    hidden, steps, count = _shape(index, from_x, batch, sizes, 3)
    from_h = _empty_as(from_x)
    kernel("gru_forward")(
        *(*index.pointers[:2], pointer(values, (index.kept,), "values")),
        pointer(bias, (3 * hidden,), "bias"),
        *_alike((from_x, from_h), 3 * hidden, count, "gates"),
        *(*columns(h, hidden, batch + count, "h"), hidden, batch, steps),
        *(_sizes(sizes), torch.get_num_threads()),
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
    *,
    sizes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of W_ih x + b_ih and of W_hh h + b_hh, [3h, columns]; carry as in LSTM."""
    hidden, steps, size = _shape(index, from_x, batch, sizes, 3)
    d_x, d_h = _empty_as(from_x), _empty_as(from_x)
    kernel("gru_backward")(
        *(*index.pointers[2:], pointer(values, (index.kept,), "values")),
        *_alike((from_x, from_h, d_x, d_h), 3 * hidden, size, "gates"),
        *(*columns(h, hidden, size + batch, "h"), *columns(dh, hidden, size, "dh")),
        *(*columns(carry, hidden, batch, "carry"), hidden, batch, steps),
        *(_sizes(sizes), torch.get_num_threads()),
    )
    return d_x, d_h


def _empty_as(columns: Tensor) -> Tensor:
    """Of the same shape, with the same distance between rows."""
    return empty(columns.shape[0], columns.stride(0))[:, : columns.shape[1]]


def _shape(
    index: LinearIndex, gates: Tensor, batch: int, sizes: Tensor | None, count: int
) -> tuple[int, int, int]:
    """Hidden units, steps and columns of a layer with so many gates."""
    hidden = index.columns
    if batch < 1:
        raise InputError(f"a batch has at least one element, not {batch}")
    if index.rows != count * hidden:
        raise InputError(
            f"a [{index.rows}, {index.columns}] mask is none of recurrent weights: those are "
            f"[{count} * hidden, hidden]"
        )
    if sizes is not None:
        return hidden, len(sizes), int(sizes.sum())
    steps = gates.shape[-1] // batch
    return hidden, steps, steps * batch


def _sizes(sizes: Tensor | None) -> int | None:
    """Address of the numbers of elements per step."""
    return None if sizes is None else pointer(sizes, sizes.shape, "sizes", dtype=torch.int64)


def _alike(tensors: tuple[Tensor, ...], rows: int, count: int, name: str) -> tuple[Any, ...]:
    """Addresses of matrices [rows, count], and the distance between rows, which all must share."""
    addresses, apart = zip(*(columns(each, rows, count, name) for each in tensors), strict=True)
    if len(set(apart)) > 1 and rows > 1:
        raise InputError(f"{name}: the distances between rows must be the same, not {apart}")
    return *addresses, apart[0]
