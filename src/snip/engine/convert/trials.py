"""One timed round of a layer in one of its ways, and which of two ways takes less time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from snip.common.timing import best_time
from snip.engine.convert.timings import Timings
from snip.engine.kernels.library import instruction_set
from snip.engine.layers.layouts import PLAIN
from snip.engine.layers.packing import DENSE, SPARSE, PackedModule

ROUNDS = 3


def run_as(
    layer: PackedModule, way: str, forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """One forward pass in a way that may not be the layer's own."""
    before, layer.way = layer.way, way
    try:
        return forward(x)
    finally:
        layer.way = before


def round_of(
    forward: Callable[[], torch.Tensor], layer: nn.Module, x: torch.Tensor, training: bool
) -> Callable[[], object]:
    """One forward pass, in training with a backward pass that leaves no gradient behind."""
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    if not training or not wanted:
        return forward
    seed = torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), wanted, seed)


def dense_wins(
    layer: PackedModule,
    forwards: Mapping[str, Callable[[torch.Tensor], torch.Tensor]],
    shape: Sequence[int],
    timings: Timings,
    *,
    first: bool,
    training: bool,
    layout: str = PLAIN,
) -> bool:
    """Whether the dense one of two ways takes less time than the sparse one on inputs of a shape.

    A `first` layer is timed without the gradient of its input, which training does not need.
    """

    def work_of(way: str) -> Callable[[], object]:
        x = torch.randn(*shape, requires_grad=not first)
        return round_of(partial(run_as, layer, way, forwards[way], x), layer, x, training)

    where = f"{layout} {list(shape)} first={first} {setting(training)}"
    key = f"{type(layer).__name__} {layer.extra_repr()} {where}"
    seconds = {
        way: timings.get(f"{way} {key}", partial(work_of, way), best) for way in (SPARSE, DENSE)
    }
    layer.indices.pop(DENSE, None)  # the whole weight is no use to a layer that runs sparse
    return seconds[DENSE] < seconds[SPARSE]


def best(work: Callable[[], object]) -> float:
    """Shortest time of a few rounds, in seconds."""
    return best_time(work, rounds=ROUNDS, warmup=0)


def setting(training: bool) -> str:
    """What a timing depends on beside the layer."""
    return f"{'training' if training else 'inference'} {machine()}"


def machine() -> str:
    """The instruction set and threads that a timing holds for."""
    return f"{instruction_set()} {torch.get_num_threads()} threads"
