"""Which ordinary layers can run sparse.

To add one: a subclass of `PackedModule` in a file of its own, and a row here.
"""

from __future__ import annotations

from torch import nn

from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.linear import SparseLinear
from snip.engine.layers.packing import PackedModule
from snip.engine.layers.recurrent import SparseRecurrent

# By exact type: a user's subclass may compute something else.
SPARSE_LAYERS: dict[type[nn.Module], type[PackedModule]] = {
    nn.Conv2d: SparseConv2d,
    nn.Linear: SparseLinear,
    nn.LSTM: SparseRecurrent,
    nn.GRU: SparseRecurrent,
}


def sparse_layer(layer: nn.Module) -> type[PackedModule] | None:
    """The class that can stand for this layer; None if it has to stay as it is."""
    kind = SPARSE_LAYERS.get(type(layer))
    return kind if kind is not None and kind.covers(layer) else None
