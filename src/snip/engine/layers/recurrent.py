"""Sparse LSTM and GRU layers with the interface of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from snip.common.errors import InputError
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import linear_backward, linear_forward
from snip.engine.kernels.memory import empty
from snip.engine.kernels.recurrence import gru_backward, gru_forward, lstm_backward, lstm_forward
from snip.engine.layers.layouts import as_columns, native
from snip.engine.layers.packing import PackedModule

Tensor = torch.Tensor


class LstmSequence(torch.autograd.Function):
    """All steps of an LSTM; x [in, steps * batch], outputs [h, steps * batch], the last h and c."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        u: Tensor,
        bias: Tensor | None,
        h0: Tensor,
        c0: Tensor,
        index_w: LinearIndex,
        index_u: LinearIndex,
    ) -> tuple[Tensor, Tensor, Tensor]:
        batch = h0.shape[1]
        gates = linear_forward(index_w, w, x, bias=bias)
        h, c = (_with_start(start, gates.shape[1]) for start in (h0, c0))
        lstm_forward(index_u, u, gates, h, c, batch)
        ctx.indices, ctx.batch = (index_w, index_u), batch
        ctx.save_for_backward(x, w, u, gates, h, c)
        ctx.set_materialize_grads(False)  # mostly only the last state is read
        return h[:, batch:], h[:, -batch:].clone(), c[:, -batch:].clone()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dh: Tensor | None, dlast: Tensor | None, dc: Tensor | None
    ) -> tuple[Any, ...]:
        x, w, u, gates, h, c = ctx.saved_tensors
        (index_w, index_u), batch = ctx.indices, ctx.batch
        carry_h, carry_c = (_carried(d, h.shape[0], batch) for d in (dlast, dc))
        dgates = lstm_backward(index_u, u, gates, c, _as_columns(dh), carry_h, carry_c, batch)
        wanted = ctx.needs_input_grad
        dx, dw, db = _products(index_w, w, x, dgates, wanted[0], wanted[1], wanted[3])
        _, du, _ = _products(index_u, u, h[:, :-batch], dgates, False, wanted[2], False)
        return dx, dw, du, db, carry_h, carry_c, None, None


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
        index_w: LinearIndex,
        index_u: LinearIndex,
    ) -> tuple[Tensor, Tensor]:
        batch = h0.shape[1]
        gates = linear_forward(index_w, w, x, bias=bias)
        h = _with_start(h0, gates.shape[1])
        from_h = gru_forward(index_u, u, inner, gates, h, batch)
        ctx.indices, ctx.batch = (index_w, index_u), batch
        ctx.save_for_backward(x, w, u, gates, from_h, h)
        ctx.set_materialize_grads(False)
        return h[:, batch:], h[:, -batch:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, dlast: Tensor | None) -> tuple[Any, ...]:
        x, w, u, gates, from_h, h = ctx.saved_tensors
        (index_w, index_u), batch = ctx.indices, ctx.batch
        carry = _carried(dlast, h.shape[0], batch)
        d_x, d_h = gru_backward(index_u, u, gates, from_h, h, _as_columns(dh), carry, batch)
        wanted = ctx.needs_input_grad
        dx, dw, db = _products(index_w, w, x, d_x, wanted[0], wanted[1], wanted[3])
        _, du, dinner = _products(index_u, u, h[:, :-batch], d_h, False, wanted[2], wanted[4])
        return dx, dw, du, db, dinner, carry, None, None


class SparseRecurrent(PackedModule):
    """`nn.LSTM` or `nn.GRU` with only its surviving weights as parameters."""

    WEIGHTS = frozenset({"weight_ih_l0", "weight_hh_l0"})
    BIASES = frozenset({"bias_ih_l0", "bias_hh_l0"})
    OWN = PackedModule.OWN | {"_flat_weights"}  # a list of the ordinary layer's parameters

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    # Settings of nn.LSTM and nn.GRU, as they have them.
    input_size: int
    hidden_size: int
    bias: bool
    batch_first: bool
    _flat_weights_names: list[str]

    @classmethod
    def covers(cls, layer: Any) -> bool:
        """One direction, one layer, no projection; dropout is between layers, so there is none."""
        return super().covers(layer) and layer.num_layers == 1

    def ordinary_state(self, parameters: dict[str, nn.Parameter | None]) -> dict[str, Any]:
        """The attributes of an ordinary layer, which keeps its parameters in a list as well."""
        flat = [parameters[name] for name in self._flat_weights_names]
        return {**super().ordinary_state(parameters), "_flat_weights": flat}

    @property
    def is_lstm(self) -> bool:
        """Whether it stands for an LSTM; otherwise for a GRU."""
        return self.kind is nn.LSTM

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """As torch's layer: (outputs, last state)."""
        if isinstance(x, nn.utils.rnn.PackedSequence):
            raise InputError("packed sequences do not run sparse: pad them, or densify.")
        fits = x.ndim == 3 and x.numel() and x.shape[2] == self.input_size
        if not fits or not native(x) or not native(self.weight_ih_l0):
            return self._in_dense(x, state)
        if self.batch_first:
            x = x.transpose(0, 1)
        steps, batch = x.shape[:2]
        columns = as_columns(x.permute(2, 0, 1).reshape(self.input_size, steps * batch))
        indices = self.linear_index("weight_ih_l0"), self.linear_index("weight_hh_l0")
        if self.is_lstm:
            h0, c0 = (self._start(part, batch, x) for part in (state or (None, None)))
            out, last_h, last_c = LstmSequence.apply(
                *(columns, self.weight_ih_l0, self.weight_hh_l0, self._lstm_bias(), h0, c0),
                *indices,
            )
            last: Any = (last_h.t()[None], last_c.t()[None])
        else:
            out, last_h = GruSequence.apply(
                *(columns, self.weight_ih_l0, self.weight_hh_l0),
                *(self.dense("bias_ih_l0"), self.dense("bias_hh_l0")),
                *(self._start(state, batch, x), *indices),
            )
            last = last_h.t()[None]
        order = (2, 1, 0) if self.batch_first else (1, 2, 0)
        return out.view(self.hidden_size, steps, batch).permute(order), last

    def last_output(self, x: Tensor) -> Tensor:
        """The output of the last step alone, which spares the gradient of all the others."""
        last = self(x)[1]
        return (last[0] if self.is_lstm else last)[0]

    def _start(self, state: Tensor | None, batch: int, like: Tensor) -> Tensor:
        if state is None:
            return like.new_zeros(self.hidden_size, batch)
        return state[0].t().contiguous()

    def _lstm_bias(self) -> Tensor | None:
        one, two = self.dense("bias_ih_l0"), self.dense("bias_hh_l0")
        return two if one is None else one if two is None else one + two

    def _in_dense(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Another dtype or device, or a single sequence: torch's own layer, correct and slow."""
        settings = {"bias": self.bias, "batch_first": self.batch_first, "device": "meta"}
        layer = self.kind(self.input_size, self.hidden_size, **settings)
        weights = {name: self.whole(name) for name in self.packed}
        return torch.func.functional_call(layer, weights, (x, state))

    def extra_repr(self) -> str:
        """For print(model)."""
        kept = sum(packed.kept for packed in self.packed.values())
        return f"{self.input_size}, {self.hidden_size}, lstm={self.is_lstm}, kept={kept:,}"


def _with_start(start: Tensor, columns: int) -> Tensor:
    """[h, batch + columns] whose first columns are the initial state."""
    states = empty(start.shape[0], start.shape[1] + columns)
    states[:, : start.shape[1]] = start
    return states


def _carried(gradient: Tensor | None, hidden: int, batch: int) -> Tensor:
    """A copy of the gradient of a last state, which the kernel writes to."""
    if gradient is not None:
        return gradient.clone(memory_format=torch.contiguous_format)
    return empty(hidden, batch).zero_()


def _as_columns(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else as_columns(gradient)


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
