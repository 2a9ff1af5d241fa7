"""Selecting 5% of many scores: ours, numpy.partition and torch.topk, as ratios in one run.

python bench/topk.py                                     17M scores
python bench/topk.py --sizes 17e6 129e6 1e9 --rounds 2   a billion take 12 GB of memory
python bench/topk.py --kept 0.5                          the share that is kept

The others get one flat copy of the scores, which counts as part of their time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch

from snip.common.timing import best_times
from snip.selection.topk import keep_top

LAYERS = 10


def partition(scores: dict[str, torch.Tensor], kept: int) -> np.floating:
    """The threshold alone, by numpy."""
    flat = torch.cat(list(scores.values())).numpy()
    flat.partition(len(flat) - kept)
    return flat[len(flat) - kept]


def compare(total: int, share: float, rounds: int) -> None:
    torch.manual_seed(0)
    scores = {f"layer{i}": torch.randn(total // LAYERS).abs_() for i in range(LAYERS)}
    kept = round(total * share)
    times = best_times(
        {
            "ours": lambda: keep_top(scores, kept),
            "numpy.partition": lambda: partition(scores, kept),
            "torch.topk": lambda: torch.topk(torch.cat(list(scores.values())), kept),
        },
        rounds=rounds,
    )
    print(f"{share:.0%} of {total:,} scores")
    for name, seconds in times.items():
        print(f"  {name:16} {seconds * 1e3:8.1f} ms  {seconds / times['ours']:6.2f} x ours")


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[17e6], help="scores: 17e6 129e6")
    parser.add_argument("--kept", type=float, default=0.05, help="share of the scores")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(given)
    for size in asked.sizes:
        compare(int(size), asked.kept, asked.rounds)


if __name__ == "__main__":
    main()
