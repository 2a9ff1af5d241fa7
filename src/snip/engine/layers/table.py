"""Which ordinary layers can run sparse.

To add one: a subclass of `PackedModule` in a file of its own, and a row here.
"""

from __future__ import annotations

import sys

from torch import nn

from snip.engine.layers.conv import SparseConv2d
from snip.engine.layers.linear import SparseConv1D, SparseLinear
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
    kind = (SPARSE_LAYERS | _of_transformers()).get(type(layer))
    return kind if kind is not None and kind.covers(layer) else None


def _of_transformers() -> dict[type[nn.Module], type[PackedModule]]:
    """The layers of Hugging Face's library; where it is not loaded, no network has one."""
    library = sys.modules.get("transformers.pytorch_utils")
    return {} if library is None else {library.Conv1D: SparseConv1D}
