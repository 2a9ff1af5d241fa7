"""A sparse linear layer: plain in and out by default, columns inside a converted network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.linear import linear_forward
from snip.engine.layers.layouts import as_columns, native
from snip.engine.layers.packing import DENSE, SPARSE, PackedModule
from snip.engine.layers.products import LinearProducts


class SparseLinear(PackedModule):
    """A linear layer whose surviving weights are its only parameters."""

    weight: torch.Tensor
    relu = False  # set where a converted network has a ReLU right behind

    def __init__(
        self, layer: nn.Linear, mask: torch.Tensor | None, bias_mask: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.add_packed("weight", layer.weight, mask)
        self.add_packed("bias", layer.bias, bias_mask)
        self.index = LinearIndex.from_mask(self.packed["weight"].mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Plain [..., in features] -> [..., out features]."""
        if not self._takes(x):
            y = F.linear(x, self._dense_weight(), self.dense("bias"))
            return y.relu() if self.relu else y
        y = self.on_columns(as_columns(x.reshape(-1, self.in_features).t()))
        return y.t().reshape(*x.shape[:-1], self.out_features).contiguous()

    def for_steps(self, x: torch.Tensor) -> torch.Tensor:
        """[N, steps, in] -> [N, steps, out], lying in memory as a recurrent layer reads it.

        The batch changes fastest there, then the steps.
        """
        if not self._takes(x) or x.ndim != 3:
            return self.forward(x)
        columns = as_columns(x.permute(2, 1, 0).reshape(self.in_features, -1))
        y = self.on_columns(columns)
        return y.view(self.out_features, x.shape[1], x.shape[0]).permute(2, 1, 0)

    def ways(self) -> tuple[str, ...]:
        """Sparse, or dense in torch's own product."""
        return SPARSE, DENSE

    def _takes(self, x: torch.Tensor) -> bool:
        return native(x) and native(self.weight) and x.numel() > 0

    def on_columns(self, x: torch.Tensor) -> torch.Tensor:
        """[in features, N] -> [out features, N]."""
        if not native(x) or not native(self.weight):
            return self.forward(x.t()).t()
        if self.way == DENSE:
            return self.as_matrix(x)
        bias = self.dense("bias")
        if not torch.is_grad_enabled():  # spares inference what autograd costs
            return linear_forward(self.index, self.weight, x, bias=bias, relu=self.relu)
        return LinearProducts.apply(x, [(self.index, self.relu)], self.weight, bias)

    def as_matrix(self, x: torch.Tensor) -> torch.Tensor:
        """The same through torch's own product: for layers that are hardly sparse."""
        bias = self.dense("bias")
        weight = self._dense_weight()
        y = weight @ x if bias is None else torch.addmm(bias[:, None], weight, x)
        return y.relu() if self.relu else y

    def _dense_weight(self) -> torch.Tensor:
        weight = self.dense("weight")
        assert weight is not None
        return weight

    def extra_repr(self) -> str:
        """For print(model)."""
        kept = self.packed["weight"].kept
        return f"{self.in_features}, {self.out_features}, kept={kept:,}"
