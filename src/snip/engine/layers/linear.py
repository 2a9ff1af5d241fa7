"""A sparse linear layer: plain in and out by default, columns inside a converted network."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import linear_forward
from snip.engine.layers.layouts import as_columns, native
from snip.engine.layers.packing import DENSE, SPARSE, PackedModule
from snip.engine.layers.products import LinearProducts, linear_states


class SparseLinear(PackedModule):
    """A linear layer whose surviving weights are its only parameters."""

    weight: torch.Tensor
    in_features: int
    out_features: int

    @property
    def index(self) -> LinearIndex:
        """Where the kernels find the weights."""
        return self.linear_index("weight")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [..., in features] -> [..., out features], as nn.Linear does it."""
        if not self._takes(x):
            return F.linear(x, self.whole("weight"), self.dense("bias"))
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
        if not native(x) or not native(self.weight) or x.shape[0] != self.in_features:
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
        weight, bias = self.whole("weight"), self.dense("bias")
        return weight @ x if bias is None else torch.addmm(bias[:, None], weight, x)

    def ways(self) -> tuple[str, ...]:
        """Sparse, or dense in torch's own product."""
        return SPARSE, DENSE

    def _takes(self, x: torch.Tensor) -> bool:
        fits = native(x) and native(self.weight) and x.numel() > 0
        return fits and x.shape[-1] == self.in_features  # otherwise torch says what is wrong

    def extra_repr(self) -> str:
        """For print(model)."""
        kept = self.packed["weight"].kept
        return f"{self.in_features}, {self.out_features}, kept={kept:,}"


def linear_chain(x: torch.Tensor, *layers: SparseLinear) -> torch.Tensor:
    """Columns through all `layers` in turn, as one differentiable function.

    Once the products are sparse, most of a small network's step is what torch spends on each
    operation; a chain spends it once.
    """
    fits = native(x) and x.shape[0] == layers[0].in_features
    if not fits or any(layer.way == DENSE or not native(layer.weight) for layer in layers):
        for layer in layers:
            x = layer.on_columns(x)
        return x
    links = [(layer.index, layer.relu) for layer in layers]
    weights = [layer.weight for layer in layers]
    biases = [layer.dense("bias") for layer in layers]
    if not torch.is_grad_enabled():
        return linear_states(x, links, weights, biases)[-1]
    return LinearProducts.apply(x, links, *weights, *biases)
