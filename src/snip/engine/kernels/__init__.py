"""Native kernels for pruned layers, on raw memory of float32 CPU tensors; no autograd here."""

from snip.engine.kernels.conv import (
    ConvIndex,
    conv_backward_input,
    conv_backward_weights,
    conv_forward,
)
from snip.engine.kernels.conversions import (
    LANES,
    blocks_to_columns,
    blocks_to_rows,
    columns_to_blocks,
    columns_to_rows,
    empty_columns,
    rows_to_blocks,
    rows_to_columns,
)
from snip.engine.kernels.index import LinearIndex
from snip.engine.kernels.library import available, instruction_set, instruction_sets, reason
from snip.engine.kernels.linear import (
    as_rows,
    linear_backward,
    linear_forward,
    pack_weights,
    plain_backward,
    plain_forward,
    unpack_weights,
)
from snip.engine.kernels.norm import norm_apply, norm_backward, norm_train, relu_backward
from snip.engine.kernels.pool import (
    Window,
    max_pool,
    max_pool_backward,
    mean_pool,
    mean_pool_backward,
)
from snip.engine.kernels.recurrence import gru_backward, gru_forward, lstm_backward, lstm_forward

__all__ = [
    "LANES",
    "ConvIndex",
    "LinearIndex",
    "Window",
    "as_rows",
    "available",
    "blocks_to_columns",
    "blocks_to_rows",
    "columns_to_blocks",
    "columns_to_rows",
    "conv_backward_input",
    "conv_backward_weights",
    "conv_forward",
    "empty_columns",
    "gru_backward",
    "gru_forward",
    "instruction_set",
    "instruction_sets",
    "linear_backward",
    "linear_forward",
    "lstm_backward",
    "lstm_forward",
    "max_pool",
    "max_pool_backward",
    "mean_pool",
    "mean_pool_backward",
    "norm_apply",
    "norm_backward",
    "norm_train",
    "pack_weights",
    "plain_backward",
    "plain_forward",
    "reason",
    "relu_backward",
    "rows_to_blocks",
    "rows_to_columns",
    "unpack_weights",
]
