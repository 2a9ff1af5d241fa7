"""What holding the zeros costs: a training step of a pruned network over the dense one's.

    python bench/hold.py                         # LeNet-5-Caffe 99% and 80%: a minute
    python bench/hold.py --model lenet-300-100 --sparsity 0.95

One network, whose masks are applied and released in turns: only the holding differs.
"""

from __future__ import annotations

import argparse

import torch
from cases import training_step

import snip
from snip.common.timing import Work, best_time
from snip.models import build


def held_over_dense(name: str, sparsity: float, rounds: int) -> float:
    """Time of a training step whose zeros are held over that of one whose are not."""
    batch = torch.randn(100, 1, 28, 28), torch.randint(0, 10, (100,))
    model = build(name, seed=0)
    masks = snip.prune(model, batch, sparsity=sparsity)
    return paired_ratio(
        lambda: masks.apply(model),
        lambda: snip.release(model),
        training_step(model, batch),
        rounds=rounds,
    )


def paired_ratio(one: Work, other: Work, work: Work, *, rounds: int) -> float:
    """Median over rounds of the time of `work` after `one` over that after `other`.

    This shows differences of a few per cent: both run on the same tensors, one shortly after the
    other. The order is swapped each round, and `work` runs once untimed after each change.
    """
    ratios = []
    for turn in range(rounds):
        times = {}
        for change in (one, other) if turn % 2 else (other, one):
            change()
            work()
            times[change] = best_time(work, rounds=1, warmup=0)
        ratios.append(times[one] / times[other])
    ratios.sort()
    return ratios[len(ratios) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="lenet-5-caffe")
    parser.add_argument("--sparsity", type=float, nargs="+", default=[0.99, 0.8])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    for sparsity in options.sparsity:
        ratio = held_over_dense(options.model, sparsity, options.rounds)
        print(
            f"{options.model} {sparsity:.0%}, batch 100, {torch.get_num_threads()} threads: "
            f"a held step takes {ratio:.4f} x the dense step (median of {options.rounds} pairs)"
        )


if __name__ == "__main__":
    main()
