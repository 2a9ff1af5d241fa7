"""Speed of each kind of sparse layer over torch's dense one: python bench/layers.py [name ...]

A training pass (forward and backward) and inference, in seconds of processor time on one thread,
taken in turns: such ratios hold on a busy machine. `alone` converts at the layer's own borders, as
in a network that cannot be traced; `inside` is what a traced network pays, which keeps the layout.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from snip.common.timing import best_times
from snip.engine.layers.conv import SparseConvolution
from snip.engine.layers.layouts import to_blocks
from snip.engine.layers.table import sparse_layer

SPARSITIES = (0.9, 0.95, 0.98)
ROUNDS = 7
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "lstm, two layers, both directions": (nn.LSTM(256, 256, 2, bidirectional=True), (40, 16, 256)),
    "lstm, the same, packed": (nn.LSTM(256, 256, 2, bidirectional=True), (0, 16, 256)),
    "gru, two layers": (nn.GRU(256, 256, 2), (40, 16, 256)),
    "lstm, batch 1": (nn.LSTM(256, 256), (28, 1, 256)),
    "conv 1-d 128-256, 200 long": (nn.Conv1d(128, 256, 3, padding=1), (16, 128, 200)),
    "conv 1-d 1-64, 79 wide": (nn.Conv1d(1, 64, 79, 4, padding=39), (16, 1, 3200)),
    "transposed 128-64 2x2": (nn.ConvTranspose2d(128, 64, 2, 2), (16, 128, 16, 16)),
    "transposed 256-128 4x4": (nn.ConvTranspose2d(256, 128, 4, 2, 1), (16, 256, 8, 8)),
    "transposed 1-d 128-64": (nn.ConvTranspose1d(128, 64, 4, 2, 1), (16, 128, 200)),
    "conv 3-d 32-64": (nn.Conv3d(32, 64, 3, padding=1), (16, 32, 8, 16, 16)),
    "conv 3-d 128-256": (nn.Conv3d(128, 256, 3, padding=1), (16, 128, 2, 4, 4)),
    "depthwise 3x3, 96": (nn.Conv2d(96, 96, 3, padding=1, groups=96), (16, 96, 32, 32)),
    "depthwise 5x5 stride 2, 240": (nn.Conv2d(240, 240, 5, 2, 2, groups=240), (16, 240, 16, 16)),
    "depthwise 7x7, 80": (nn.Conv2d(80, 80, 7, padding=3, groups=80), (16, 80, 16, 16)),
}


def sparse_of(layer: nn.Module, sparsity: float) -> Any:
    """Its counterpart under a random mask; the layer gets the zeros too."""
    masks = {}
    with torch.no_grad():
        for name, weight in layer.named_parameters():
            if "weight" in name:
                masks[name] = torch.rand(weight.shape) >= sparsity
                weight.mul_(masks[name])
    kind = sparse_layer(layer)
    assert kind is not None
    return kind(layer, masks)


def inputs_of(shape: tuple[int, ...]) -> Any:
    """Numbers of this shape; no steps stand for sequences of 10 to 40 steps."""
    if shape[0]:
        return torch.randn(shape, requires_grad=True)
    x = torch.randn(40, *shape[1:], requires_grad=True)
    return pack_padded_sequence(x, list(range(40, 40 - 2 * shape[1], -2)))


def works(call: Callable[[Any], Any], layer: nn.Module, x: Any) -> list[Callable[[], object]]:
    """A training pass and an inference."""
    leaf = x.data if isinstance(x, PackedSequence) else x
    wanted = [leaf, *layer.parameters()]

    def output() -> torch.Tensor:
        made = call(x)
        made = made[0] if isinstance(made, tuple) and not isinstance(made, PackedSequence) else made
        return made.data if isinstance(made, PackedSequence) else made

    seed = torch.randn_like(output())

    def infer() -> None:
        with torch.no_grad():
            output()

    return [lambda: torch.autograd.grad(output(), wanted, seed), infer]


def seconds(all_works: list[Callable[[], object]]) -> list[float]:
    """The least processor time of each work, taken in turns."""
    works = {str(at): work for at, work in enumerate(all_works)}
    return list(best_times(works, rounds=ROUNDS, warmup=0, clock=time.thread_time).values())


def ratios(layer: nn.Module, shape: tuple[int, ...], sparsity: float) -> str:
    """Dense over sparse, in training and inference, alone and inside a network."""
    sparse, x = sparse_of(layer, sparsity), inputs_of(shape)
    todo = works(layer, layer, x) + works(sparse, sparse, x)
    if isinstance(sparse, SparseConvolution):
        blocks = to_blocks(x.detach()).requires_grad_()
        todo += works(lambda given: sparse.on_blocks(given, shape[0]), sparse, blocks)
    training, inference, *ours = seconds(todo)
    cells = [
        f"{training / ours[i]:5.2f}x {inference / ours[i + 1]:5.2f}x"
        for i in range(0, len(ours), 2)
    ]
    return " | ".join(cells) if len(cells) > 1 else f"{cells[0]} | {'':13}"


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    names = [name for name in LAYERS if not sys.argv[1:] or any(a in name for a in sys.argv[1:])]
    print(f"{'dense / sparse: training, inference':36}", end="")
    print("".join(f"{f'{s:.0%} alone':>14} | {'inside':13}" for s in SPARSITIES))
    for name in names:
        layer, shape = LAYERS[name]
        cells = [ratios(copy.deepcopy(layer), shape, sparsity) for sparsity in SPARSITIES]
        print(f"{name:36} {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
