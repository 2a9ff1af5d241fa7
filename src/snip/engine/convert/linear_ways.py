"""Which linear layers run dense, by timing them once on the user's machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from snip.engine.convert.timings import Timings
from snip.engine.convert.trials import best, round_of, run_as, setting
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
    layer: PlainLinear, shape: Sequence[int], timings: Timings, training: bool
) -> bool:
    """Whether torch's own product is faster: in a converted network, matrices are columns."""
    if len(shape) != 2 or not isinstance(layer, SparseLinear):
        return _dense_plain_wins(layer, shape, timings, training)
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    if kept * 20 < total or kept < FEW:
        return False
    ways = {DENSE: layer.as_matrix, SPARSE: layer.on_columns}
    return _dense_wins(layer, ways, (shape[1], shape[0]), f"{shape[0]}", timings, training)


def _dense_plain_wins(
    layer: PlainLinear, shape: Sequence[int], timings: Timings, training: bool
) -> bool:
    kept, total = layer.packed["weight"].kept, layer.packed["weight"].total
    work = math.prod(shape[:-1]) * total
    if not kept or not work or (kept <= SPARSE_ENOUGH * total and work >= PLENTY):
        return False
    ways = {DENSE: layer.in_dense, SPARSE: layer.forward}
    return _dense_wins(layer, ways, shape, f"plain {list(shape)}", timings, training)


def _dense_wins(
    layer: PlainLinear,
    ways: Mapping[str, Callable[[torch.Tensor], torch.Tensor]],
    shape: Sequence[int],
    where: str,
    timings: Timings,
    training: bool,
) -> bool:
    """Whether the dense way takes less time than the sparse one on activations of this shape."""

    def work_of(way: str) -> Callable[[], object]:
        x = torch.randn(*shape, requires_grad=True)
        return round_of(partial(run_as, layer, way, ways[way], x), layer, x, training)

    key = f"{where} {layer.extra_repr()} turned={layer.turned} {setting(training)}"
    seconds = {way: timings.get(f"{way} {key}", partial(work_of, way), best) for way in ways}
    layer.indices.pop(DENSE, None)  # the whole weight is no use to a layer that runs sparse
    return seconds[DENSE] < seconds[SPARSE]
