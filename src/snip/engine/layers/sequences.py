"""Whole sequences through one direction of one LSTM or GRU layer, as differentiable functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import linear_backward, linear_forward
from snip.engine.kernels.memory import empty
from snip.engine.kernels.recurrence import gru_backward, gru_forward, lstm_backward, lstm_forward
from snip.engine.layers.layouts import as_columns
from snip.engine.once import once_differentiable

Tensor = torch.Tensor
Indices = tuple[LinearIndex, LinearIndex]  # of the weights from the input and from the state


@dataclass(frozen=True, eq=False)
class Steps:
    """How the columns of a batch of sequences are divided into steps.

    The elements of a step stand side by side, then come those of the next step. Where lengths
    differ, `sizes` has the number of elements of each step, which never grows.
    """

    batch: int
    columns: int
    sizes: Tensor | None = None

    def before(self, states: Tensor) -> Tensor:
        """Of [h, batch + columns] that begins with the initial states: that before each column."""
        if self.sizes is None:
            return states[:, : self.columns]
        return states.index_select(1, self._places["before"])

    def last(self, states: Tensor) -> Tensor:
        """Of [h, batch + columns]: the last state of each element."""
        if self.sizes is None:
            return states[:, self.columns :].clone()
        return states.index_select(1, self._places["last"])

    def backwards(self, x: Tensor) -> Tensor:
        """Each element's columns from its last step to its first. Done twice, it is undone."""
        if self.sizes is None:
            return x.unflatten(1, (-1, self.batch)).flip(1).flatten(1)
        return x.index_select(1, self._places["backwards"])

    @cached_property
    def _places(self) -> dict[str, Tensor]:
        """Where to find the columns of sequences of different lengths."""
        sizes = self.sizes
        assert sizes is not None
        starts = sizes.cumsum(0) - sizes
        step = torch.arange(len(sizes)).repeat_interleave(sizes)
        column = torch.arange(self.columns)
        element = column - starts[step]
        lengths = (sizes > torch.arange(self.batch)[:, None]).sum(1)
        one_back = torch.where(step > 0, sizes[step - 1], self.batch)
        return {
            "before": self.batch + column - one_back,
            "last": self.batch + starts[lengths - 1] + torch.arange(self.batch),
            "backwards": starts[lengths[element] - 1 - step] + element,
        }


class LstmSequence(torch.autograd.Function):
    """All steps of an LSTM; x [in, columns], outputs [h, columns], the last h and c [h, batch]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        u: Tensor,
        bias: Tensor | None,
        h0: Tensor,
        c0: Tensor,
        indices: Indices,
        steps: Steps,
        backwards: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = steps.backwards(x) if backwards else x
        gates = linear_forward(indices[0], w, x, bias=bias)
        h, c = (_with_start(start, steps.columns) for start in (h0, c0))
        lstm_forward(indices[1], u, gates, h, c, steps.batch, sizes=steps.sizes)
        ctx.settings = indices, steps, backwards
        ctx.save_for_backward(x, w, u, gates, h, c)
        ctx.set_materialize_grads(False)  # mostly only the last state is read
        return _outputs(h, steps, backwards), steps.last(h), steps.last(c)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dh: Tensor | None, dlast: Tensor | None, dc: Tensor | None
    ) -> tuple[Any, ...]:
        x, w, u, gates, h, c = ctx.saved_tensors
        indices, steps, backwards = ctx.settings
        carries = [_carried(d, h.shape[0], steps.batch) for d in (dlast, dc)]
        dh = _gradient(dh, steps, backwards)
        dgates = lstm_backward(
            *(indices[1], u, gates, c, dh, *carries, steps.batch), sizes=steps.sizes
        )
        wanted = ctx.needs_input_grad
        dx, dw, db = _products(indices[0], w, x, dgates, wanted[0], wanted[1], wanted[3])
        du = _products(indices[1], u, steps.before(h), dgates, False, wanted[2], False)[1]
        dx = steps.backwards(dx) if backwards and dx is not None else dx
        return dx, dw, du, db, *carries, None, None, None


class GruSequence(torch.autograd.Function):
    """All steps of a GRU; as LstmSequence, with the bias of the hidden side apart."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        u: Tensor,
        bias: Tensor | None,
        inner: Tensor | None,
        h0: Tensor,
        indices: Indices,
        steps: Steps,
        backwards: bool,
    ) -> tuple[Tensor, Tensor]:
        x = steps.backwards(x) if backwards else x
        gates = linear_forward(indices[0], w, x, bias=bias)
        h = _with_start(h0, steps.columns)
        from_h = gru_forward(indices[1], u, inner, gates, h, steps.batch, sizes=steps.sizes)
        ctx.settings = indices, steps, backwards
        ctx.save_for_backward(x, w, u, gates, from_h, h)
        ctx.set_materialize_grads(False)
        return _outputs(h, steps, backwards), steps.last(h)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dlast: Tensor | None) -> tuple[Any, ...]:
        x, w, u, gates, from_h, h = ctx.saved_tensors
        indices, steps, backwards = ctx.settings
        carry = _carried(dlast, h.shape[0], steps.batch)
        dh = _gradient(dh, steps, backwards)
        d_x, d_h = gru_backward(
            *(indices[1], u, gates, from_h, h, dh, carry, steps.batch), sizes=steps.sizes
        )
        wanted = ctx.needs_input_grad
        dx, dw, db = _products(indices[0], w, x, d_x, wanted[0], wanted[1], wanted[3])
        before = steps.before(h)
        _, du, dinner = _products(indices[1], u, before, d_h, False, wanted[2], wanted[4])
        dx = steps.backwards(dx) if backwards and dx is not None else dx
        return dx, dw, du, db, dinner, carry, None, None, None


def _with_start(start: Tensor, columns: int) -> Tensor:
    """[h, batch + columns] whose first columns are the initial state."""
    states = empty(start.shape[0], start.shape[1] + columns)
    states[:, : start.shape[1]] = start
    return states


def _outputs(states: Tensor, steps: Steps, backwards: bool) -> Tensor:
    """The states after each column, in the order of the inputs."""
    after = states[:, steps.batch :]
    return steps.backwards(after) if backwards else after


def _gradient(dh: Tensor | None, steps: Steps, backwards: bool) -> Tensor | None:
    """The gradient of the outputs, in the order in which the steps were taken."""
    if dh is None:
        return None
    dh = as_columns(dh)
    return steps.backwards(dh) if backwards else dh


def _carried(gradient: Tensor | None, hidden: int, batch: int) -> Tensor:
    """A copy of the gradient of a last state, which the kernel writes to."""
    if gradient is not None:
        return gradient.clone(memory_format=torch.contiguous_format)
    return empty(hidden, batch).zero_()


def _products(
    index: LinearIndex, values: Tensor, x: Tensor, dy: Tensor, to_x: bool, to_w: bool, to_b: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of one product that are wanted: of its input, weights and bias."""
    dx = empty(*x.shape) if to_x else None
    dw = torch.empty_like(values) if to_w else None
    db = empty(index.rows) if to_b else None
    if to_x or to_w or to_b:
        linear_backward(index, values, x, dy, dx=dx, dw=dw, db=db)
    return dx, dw, db
