"""Which ordinary layers can run sparse.

To add one: a subclass of `PackedModule` in a file of its own, and a row here.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from snip.engine.layers.attention import SparseAttention
from snip.engine.layers.conv import SparseConv1d, SparseConv2d
from snip.engine.layers.linear import SparseConv1D, SparseLinear
from snip.engine.layers.packing import PackedModule
from snip.engine.layers.recurrent import SparseRecurrent
from snip.engine.layers.transposed import SparseConvTranspose1d, SparseConvTranspose2d
from snip.engine.layers.volume import SparseConv3d
from snip.network.layout import is_conv1d

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
    nn.MultiheadAttention: SparseAttention,
}
# How multi-head attention projects its outputs: a linear layer under another name.
OUTPUT_PROJECTION = NonDynamicallyQuantizableLinear


def sparse_layer(layer: nn.Module) -> type[PackedModule] | None:
    """The class that can stand for this layer; None if it has to stay as it is."""
    ordinary = nn.Linear if type(layer) is OUTPUT_PROJECTION else type(layer)
    kind = SparseConv1D if is_conv1d(layer) else SPARSE_LAYERS.get(ordinary)
    return kind if kind is not None and kind.covers(layer) else None
