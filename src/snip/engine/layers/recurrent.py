"""Sparse LSTM and GRU layers with the interface of torch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from snip.engine.kernels.memory import readable
from snip.engine.layers.layouts import as_columns, from_columns
from snip.engine.layers.packing import DENSE, SPARSE, PackedModule
from snip.engine.layers.sequences import GruSequence, LstmSequence, Steps

Tensor = torch.Tensor


class SparseRecurrent(PackedModule):
    """`nn.LSTM` or `nn.GRU` with only its surviving weights as parameters.

    Each direction of each of its layers is one native walk over the whole sequence. In training,
    `dropout` between layers zeroes other positions than torch's layer does under the same seed.
    """

    OWN = PackedModule.OWN | {"_flat_weights"}  # a list of the ordinary layer's parameters

    # Settings of nn.LSTM and nn.GRU, as they have them.
    input_size: int
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    _flat_weights_names: list[str]

    @classmethod
    def covers(cls, layer: Any) -> bool:
        """Weights of its own under torch's names; no projection."""
        return layer._parameters.keys() == set(layer._flat_weights_names) and not layer.proj_size

    def ordinary_state(self, parameters: dict[str, nn.Parameter | None]) -> dict[str, Any]:
        """The attributes of an ordinary layer, which keeps its parameters in a list as well."""
        flat = [parameters[name] for name in self._flat_weights_names]
        return {**super().ordinary_state(parameters), "_flat_weights": flat}

    def ways(self) -> tuple[str, ...]:
        """Sparse, or dense in torch's own layer."""
        return SPARSE, DENSE

    @property
    def is_lstm(self) -> bool:
        """Whether it stands for an LSTM; otherwise for a GRU."""
        return self.kind is nn.LSTM

    @property
    def directions(self) -> int:
        """How often each layer reads the sequence."""
        return 2 if self.bidirectional else 1

    def flatten_parameters(self) -> None:
        """Nothing: in torch it prepares the weights for a GPU, and forwards call it."""

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        """As torch's layer: (outputs, last state)."""
        if isinstance(x, PackedSequence):
            return self._on_packed(x, state)
        if x.ndim == 2 and self._takes(x, state, ()):
            lone = None if state is None else _each(state, lambda part: part[:, None])
            steps, x = Steps(1, len(x)), x.t()
            y, last = self._run(as_columns(x), self._states(lone), steps)
            return from_columns(y), _each(last, lambda part: part[:, 0])
        if x.ndim != 3 or not self._takes(x, state, (x.shape[0 if self.batch_first else 1],)):
            return self._in_dense(x, state)
        y, last = self._on_steps(x, state)
        if self.batch_first:
            return y.permute(2, 1, 0), last
        return from_columns(y.flatten(1)).view(*x.shape[:2], -1), last

    def last_output(self, x: Tensor) -> Tensor:
        """The output of the last step alone, which spares the gradient of all the others."""
        if not self._takes(x, None, (1,)):
            return self(x)[0].select(1 if self.batch_first else 0, -1)
        last = self._on_steps(x, None)[1]
        return (last[0] if self.is_lstm else last)[-1]

    def _on_steps(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Sequences of one length: outputs [features, steps, batch], last state."""
        if self.batch_first:
            x = x.transpose(0, 1)
        count, batch = x.shape[:2]
        columns = as_columns(x.permute(2, 0, 1).reshape(self.input_size, count * batch))
        y, last = self._run(columns, self._states(state), Steps(batch, count * batch))
        return y.unflatten(1, (count, batch)), last

    def _on_packed(self, x: PackedSequence, state: Any) -> tuple[PackedSequence, Any]:
        """Sequences of different lengths, sorted by length; the states are in the user's order."""
        sizes = x.batch_sizes
        if x.data.ndim != 2 or not self._takes(x.data, state, (int(sizes[0]),)):
            return self._in_dense(x, state)
        there, back = x.sorted_indices, x.unsorted_indices
        if state is not None and there is not None:
            state = _each(state, lambda part: part.index_select(1, there))
        steps = Steps(int(sizes[0]), len(x.data), sizes.contiguous())
        y, last = self._run(as_columns(x.data.t()), self._states(state), steps)
        if back is not None:
            last = _each(last, lambda part: part.index_select(1, back))
        return PackedSequence(from_columns(y), sizes, there, back), last

    def _run(self, x: Tensor, states: Sequence[Tensor | None], steps: Steps) -> tuple[Tensor, Any]:
        """Columns through all layers; `states` has the initial h (and c) or None for zeros."""
        lasts: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            made = []
            for direction in range(self.directions):
                start = [self._start(part, len(lasts), steps.batch) for part in states]
                y, *last = self._direction(layer, direction, x, start, steps)
                made.append(y)
                lasts.append(tuple(last))
            x = torch.cat(made) if self.bidirectional else made[0]
            if self.dropout and layer + 1 < self.num_layers:
                x = F.dropout(x, self.dropout, self.training)
        stacked = tuple(torch.stack(parts).transpose(1, 2) for parts in zip(*lasts, strict=True))
        return x, stacked if self.is_lstm else stacked[0]

    def _direction(
        self, layer: int, direction: int, x: Tensor, start: list[Tensor], steps: Steps
    ) -> Any:
        """One layer in one direction: outputs, the last h (and c)."""
        end = f"_l{layer}{'_reverse' * direction}"
        names = f"weight_ih{end}", f"weight_hh{end}"
        weights = [self.get_parameter(name) for name in names]
        one, two = self.dense(f"bias_ih{end}"), self.dense(f"bias_hh{end}")
        settings = tuple(map(self.linear_index, names)), steps, bool(direction)
        if not self.is_lstm:
            return GruSequence.apply(x, *weights, one, two, *start, *settings)
        bias = two if one is None else one if two is None else one + two
        return LstmSequence.apply(x, *weights, bias, *start, *settings)

    def _states(self, state: Any) -> tuple[Tensor | None, ...]:
        """The initial h (and c) as torch takes them; None for zeros."""
        if state is None:
            return (None,) * (1 + self.is_lstm)
        return tuple(state) if self.is_lstm else (state,)

    def _start(self, state: Tensor | None, which: int, batch: int) -> Tensor:
        if state is None:
            return torch.zeros(self.hidden_size, batch, dtype=torch.float32, device="cpu")
        return state[which].t().contiguous()

    def _takes(self, x: Tensor, state: Any, batch: tuple[int, ...]) -> bool:
        """Whether the kernels can compute it; torch computes anything else, or says what is wrong.

        `batch` is the batch size, where there is one.
        """
        parts = () if state is None else self._states(state)
        shape = (self.num_layers * self.directions, *batch, self.hidden_size)
        tensors = (x, *parts, *self.parameters())
        return (
            self.way == SPARSE
            and all(isinstance(t, Tensor) and readable(t) for t in tensors)
            and x.numel() > 0
            and x.shape[-1] == self.input_size
            and len(parts) in (0, 1 + self.is_lstm)
            and all(part is not None and part.shape == shape for part in parts)
        )

    def _in_dense(self, x: Any, state: Any) -> tuple[Any, Any]:
        """Torch's own layer: for another dtype or device, or where sparse does not pay."""
        if DENSE not in self.indices:
            settings = ("bias", "num_layers", "batch_first", "dropout", "bidirectional")
            self.indices[DENSE] = self.kind(
                *(self.input_size, self.hidden_size),
                **{name: getattr(self, name) for name in settings},
                device="meta",
            )
        layer = self.indices[DENSE].train(self.training)
        weights = {name: self.whole(name) for name in self.packed}
        return torch.func.functional_call(layer, weights, (x, state))

    def extra_repr(self) -> str:
        """For print(model)."""
        kept = sum(packed.kept for packed in self.packed.values())
        return (
            f"{self.input_size}, {self.hidden_size}, lstm={self.is_lstm}, "
            f"num_layers={self.num_layers}, bidirectional={self.bidirectional}, kept={kept:,}"
        )


def _each(state: Any, change: Any) -> Any:
    """A state, which is a tensor or a pair of tensors, with each tensor changed."""
    return change(state) if isinstance(state, Tensor) else tuple(map(change, state))
