"""Selecting 5% of 17M scores: ours, numpy.partition and torch.topk, as ratios in one run.

python bench/topk.py
"""

from __future__ import annotations

import numpy as np
import torch

from snip.common.timing import best_times
from snip.selection.topk import keep_top

TOTAL, KEPT = 17_000_000, 850_000


def main() -> None:
    torch.manual_seed(0)
    scores = {f"layer{i}": torch.randn(TOTAL // 10).abs() for i in range(10)}
    times = best_times(
        {
            "ours": lambda: keep_top(scores, KEPT),
            "numpy.partition": lambda: np.partition(
                torch.cat(list(scores.values())).numpy(), TOTAL - KEPT
            ),
            "torch.topk": lambda: torch.topk(torch.cat(list(scores.values())), KEPT),
        },
        rounds=5,
    )
    for name, seconds in times.items():
        print(f"{name:16} {seconds * 1e3:8.1f} ms  {seconds / times['ours']:6.2f} x ours")


if __name__ == "__main__":
    main()
