"""Linear layers one behind the other, as one differentiable function.

Once the products are sparse, a small network's step is bound by what torch spends per operation;
a chain spends it once.
"""

from __future__ import annotations

import torch

from snip.engine.layers.layouts import native
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.packing import DENSE
from snip.engine.layers.products import LinearProducts, linear_states


def linear_chain(x: torch.Tensor, *layers: SparseLinear) -> torch.Tensor:
    """Columns through all `layers` in turn."""
    if not native(x) or any(layer.way == DENSE or not native(layer.weight) for layer in layers):
        for layer in layers:
            x = layer.on_columns(x)
        return x
    links = [(layer.index, layer.relu) for layer in layers]
    weights = [layer.weight for layer in layers]
    biases = [layer.dense("bias") for layer in layers]
    if not torch.is_grad_enabled():
        return linear_states(x, links, weights, biases)[-1]
    return LinearProducts.apply(x, links, *weights, *biases)
