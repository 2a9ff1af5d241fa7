"""What holding the zeros costs: a training step of a pruned network over the dense one's.

python bench/hold.py                         # LeNet-5-Caffe 99%: half a minute
python bench/hold.py --model lenet-300-100 --sparsity 0.95
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timing import paired_ratio
from torch import nn

import snip
from snip.models import build


def stepper(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> Callable[[], None]:
    """One whole training step: forward, backward, SGD with momentum and weight decay."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="lenet-5-caffe")
    parser.add_argument("--sparsity", type=float, default=0.99)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    batch = torch.randn(100, 1, 28, 28), torch.randint(0, 10, (100,))
    dense, pruned = build(options.model, seed=0), build(options.model, seed=0)
    snip.prune(pruned, batch, sparsity=options.sparsity)
    # The same values in both: zeros are what both compute with, only the holding differs.
    dense.load_state_dict(pruned.state_dict())
    ratio = paired_ratio(stepper(pruned, batch), stepper(dense, batch), rounds=options.rounds)
    print(
        f"{options.model} {options.sparsity:.0%}, batch 100, {torch.get_num_threads()} threads: "
        f"a held step takes {ratio:.4f} x the dense step (median of {options.rounds} pairs)"
    )


if __name__ == "__main__":
    main()
