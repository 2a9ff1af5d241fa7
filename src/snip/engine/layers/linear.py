"""Sparse linear layers: plain in and out by default, columns inside a converted network."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from snip.engine.kernels.constants import SAMPLES
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import linear_forward
from snip.engine.kernels.memory import readable
from snip.engine.layers.dense import DenseWeight
from snip.engine.layers.layouts import as_columns
from snip.engine.layers.packing import DENSE, SPARSE, PackedModule
from snip.engine.layers.products import LinearProducts, linear_states, plain_product


class PlainLinear(PackedModule):
    """A layer that multiplies the last dimension of plain activations by its surviving weights."""

    weight: torch.Tensor
    turned = False  # whether the weights are [in, out] instead of [out, in]

    @property
    def index(self) -> LinearIndex:
        """Where the kernels find the weights."""
        return self.linear_index("weight")

    @property
    def sizes(self) -> tuple[int, int]:
        """Input and output features."""
        rows, columns = self.packed["weight"].shape
        return (rows, columns) if self.turned else (columns, rows)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [..., in features] -> [..., out features]."""
        if self.way == DENSE or not self._takes(x):
            return self.in_dense(x)
        return plain_product(x, self.weight, self.dense("bias"), self.index, turned=self.turned)

    def in_dense(self, x: torch.Tensor) -> torch.Tensor:
        """The same by torch's own product: for layers that are hardly sparse."""
        weight = self.dense_weight()
        return F.linear(x, weight.t() if self.turned else weight, self.dense("bias"))

    def dense_weight(self) -> torch.Tensor:
        """The weights with their zeros, differentiable."""
        packed = self.packed["weight"]
        if packed.kept == packed.total or not readable(self.weight):
            return self.whole("weight")
        if DENSE not in self.indices:
            self.indices[DENSE] = DenseWeight(self.index)
        found: torch.Tensor = self.indices[DENSE].of(self.weight)
        return found

    def ways(self) -> tuple[str, ...]:
        """Sparse, or dense in torch's own product."""
        return SPARSE, DENSE

    def _takes(self, x: torch.Tensor) -> bool:
        fits = readable(x) and readable(self.weight) and x.numel() > 0
        return fits and x.shape[-1] == self.sizes[0]  # otherwise torch says what is wrong

    def extra_repr(self) -> str:
        """For print(model)."""
        inputs, outputs = self.sizes
        return f"{inputs}, {outputs}, kept={self.packed['weight'].kept:,}"


class SparseConv1D(PlainLinear):
    """The linear layer of Hugging Face's GPT-2, which has its weights as [in, out]."""

    turned = True


class SparseLinear(PlainLinear):
    """A linear layer whose surviving weights are its only parameters."""

    in_features: int
    out_features: int

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [..., in features] -> [..., out features], as nn.Linear does it."""
        if self.way == DENSE or not self._takes(x) or not _few(x):
            return super().forward(x)
        y = self._on_columns(as_columns(x.reshape(-1, self.in_features).t()), relu=False)
        return y.t().reshape(*x.shape[:-1], self.out_features).contiguous()

    def for_steps(self, x: torch.Tensor) -> torch.Tensor:
        """[N, steps, in] -> [N, steps, out], lying in memory as a recurrent layer reads it.

        The batch changes fastest there, then the steps.
        """
        if not self._takes(x) or x.ndim != 3:
            return self.forward(x)
        columns = as_columns(x.permute(2, 1, 0).reshape(self.in_features, -1))
        y = self._on_columns(columns, relu=False)
        return y.view(self.out_features, x.shape[1], x.shape[0]).permute(2, 1, 0)

    def on_columns(self, x: torch.Tensor) -> torch.Tensor:
        """[in features, N] -> [out features, N], with the ReLU behind it if there is one."""
        if not readable(x) or not readable(self.weight) or x.shape[0] != self.in_features:
            y = as_columns(self.forward(x.t()).t())
            return y.relu() if self.relu else y
        return self._on_columns(x, relu=self.relu)

    def _on_columns(self, x: torch.Tensor, *, relu: bool) -> torch.Tensor:
        if self.way == DENSE:
            y = self.as_matrix(x)
            return y.relu() if relu else y
        bias = self.dense("bias")
        if not torch.is_grad_enabled():  # spares inference what autograd costs
            return linear_forward(self.index, self.weight, x, bias=bias, relu=relu)
        return LinearProducts.apply(x, [(self.index, relu)], self.weight, bias)

    def as_matrix(self, x: torch.Tensor) -> torch.Tensor:
        """Columns through torch's own product: for layers that are hardly sparse."""
        weight, bias = self.dense_weight(), self.dense("bias")
        return weight @ x if bias is None else torch.addmm(bias[:, None], weight, x)


def _few(x: torch.Tensor) -> bool:
    """Whether there are too few samples for every thread to have some of its own.

    Whole columns are divided among threads by weights instead.
    """
    threads = torch.get_num_threads()
    return threads > 1 and x.numel() < threads * SAMPLES * x.shape[-1]


def linear_chain(x: torch.Tensor, *layers: SparseLinear) -> torch.Tensor:
    """Columns through all `layers` in turn, as one differentiable function.

    Once the products are sparse, most of a small network's step is what torch spends on each
    operation; a chain spends it once.
    """
    fits = readable(x) and x.shape[0] == layers[0].in_features
    if not fits or any(layer.way == DENSE or not readable(layer.weight) for layer in layers):
        for layer in layers:
            x = layer.on_columns(x)
        return x
    links = [(layer.index, layer.relu) for layer in layers]
    weights = [layer.weight for layer in layers]
    biases = [layer.dense("bias") for layer in layers]
    if not torch.is_grad_enabled():
        return linear_states(x, links, weights, biases)[-1]
    return LinearProducts.apply(x, links, *weights, *biases)
