"""One timed round of a layer in one of its ways."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from snip.common.timing import best_time
from snip.engine.kernels.library import instruction_set
from snip.engine.layers.packing import PackedModule

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
    if not training:
        return forward
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    seed = torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), wanted, seed)


def best(work: Callable[[], object]) -> float:
    """Shortest time of a few rounds, in seconds."""
    return best_time(work, rounds=ROUNDS, warmup=0)


def setting(training: bool) -> str:
    """What a timing depends on beside the layer."""
    return f"{'training' if training else 'inference'} {machine()}"


def machine() -> str:
    """The instruction set and threads that a timing holds for."""
    return f"{instruction_set()} {torch.get_num_threads()} threads"
