"""Linear layers on [batch, tokens, features], sparse over dense torch: python bench/tokens.py

Whole layers as a network calls them: plain tensors in and out, autograd, bias. Forward is inference
without gradients, training is forward and backward to the input, the weights and the bias. Rounds
of sparse and dense alternate and the best of each counts; times are the CPU's, summed over threads,
so that ratios hold on a busy machine where the times themselves do not.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from snip.common.timing import best_times
from snip.engine import kernels
from snip.engine.layers.linear import SparseLinear

SPARSITIES = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
LAYERS = ((192, 768), (256, 256), (256, 1024), (1024, 256), (512, 2048))


def best_pair(
    dense: Callable[[], object], sparse: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Least seconds of CPU time of both, taken in turns."""
    works = {"dense": dense, "sparse": sparse}
    found = best_times(works, rounds=rounds, warmup=0, clock=time.process_time)
    return found["dense"], found["sparse"]


def training(layer: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> Callable[[], object]:
    """One forward and backward that leaves no gradient behind."""
    wanted = (x, *layer.parameters())
    return lambda: torch.autograd.grad(layer(x), wanted, dy)


def ratios(inputs: int, outputs: int, shape: tuple[int, int], sparsity: float, rounds: int):
    """How many times faster sparse is: in inference, in training."""
    dense = nn.Linear(inputs, outputs)
    sparse = SparseLinear(dense, {"weight": torch.rand(outputs, inputs) >= sparsity})
    x, dy = torch.randn(*shape, inputs, requires_grad=True), torch.randn(*shape, outputs)
    with torch.no_grad():
        forward = best_pair(lambda: dense(x), lambda: sparse(x), rounds)
    whole = best_pair(training(dense, x, dy), training(sparse, x, dy), rounds)
    return forward[0] / forward[1], whole[0] / whole[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    if not kernels.available():
        parser.exit(1, f"No native kernels: {kernels.reason()}\n")
    torch.manual_seed(0)
    shape = given.batch, given.tokens
    print(f"[{given.batch}, {given.tokens}, features], {torch.get_num_threads()} threads, "
          f"{kernels.instruction_set()}; inference / training over dense")  # fmt: skip
    print(f"{'layer':<12}" + "".join(f"{f'{s:.0%}':>14}" for s in SPARSITIES))
    for inputs, outputs in LAYERS:
        cells = [f"{f'{inputs}-{outputs}':<12}"]
        for sparsity in SPARSITIES:
            forward, whole = ratios(inputs, outputs, shape, sparsity, given.rounds)
            cells.append(f"{f'{forward:.2f} / {whole:.2f}':>14}")
        print("".join(cells), flush=True)


if __name__ == "__main__":
    main()
