"""Which ordinary layers can run sparse.

To add one: a subclass of `PackedModule` in a file of its own, and a row here.
"""

from __future__ import annotations

import sys

from torch import nn

from snip.engine.layers.conv import SparseConv1d, SparseConv2d
from snip.engine.layers.linear import SparseConv1D, SparseLinear
from snip.engine.layers.packing import PackedModule
from snip.engine.layers.recurrent import SparseRecurrent
from snip.engine.layers.transposed import SparseConvTranspose1d, SparseConvTranspose2d
from snip.engine.layers.volume import SparseConv3d

# By exact type: a user's subclass may compute something else.
SPARSE_LAYERS: dict[type[nn.Module], type[PackedModule]] = {
    nn.Conv1d: SparseConv1d,
    nn.Conv2d: SparseConv2d,
    nn.Conv3d: SparseConv3d,
    nn.ConvTranspose1d: SparseConvTranspose1d,
    nn.ConvTranspose2d: SparseConvTranspose2d,
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
