"""Which linear layers run dense, by timing them once on the user's machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from snip.engine.convert.timings import Timings
from snip.engine.convert.trials import dense_wins
from snip.engine.layers.layouts import COLUMNS
from snip.engine.layers.linear import PlainLinear, SparseLinear
from snip.engine.layers.packing import DENSE, SPARSE

# A linear layer on columns of fewer weights costs less than timing it would, and a dense one among
# sparse ones would break their chain.
FEW = 20_000
# On plain activations a dense layer breaks nothing. Sparse wins by far with this part of the
# weights or less (bench/tokens.py: twice as fast at a tenth, equal at a third), if there is so much
# dense work (multiply-adds, half a millisecond) that what Python spends on a call does not count.
SPARSE_ENOUGH = 1 / 8
PLENTY = 1 << 25


def dense_linear_wins(
    layer: PlainLinear, shape: Sequence[int], timings: Timings, *, first: bool, training: bool
) -> bool:
    """Whether torch's own product is faster: in a converted network, matrices are columns."""
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    timed = partial(dense_wins, layer, timings=timings, first=first, training=training)
    if len(shape) == 2 and isinstance(layer, SparseLinear):
        if kept * 20 < total or kept < FEW:
            return False
        ways = {DENSE: layer.as_matrix, SPARSE: layer.on_columns}
        return timed(ways, (shape[1], shape[0]), layout=COLUMNS)
    work = math.prod(shape[:-1]) * total
    if not kept or not work or (kept <= SPARSE_ENOUGH * total and work >= PLENTY):
        return False
    return timed({DENSE: layer.in_dense, SPARSE: layer.forward}, shape)
