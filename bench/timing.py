"""Timing for a noisy machine: rivals take turns in one run, the best of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def best_times(
    rivals: Mapping[str, Work], *, rounds: int, warmup: int = 1, setup: Work | None = None
) -> dict[str, float]:
    """Seconds of the fastest round of each rival, taken in turns; `setup` before each is free."""
    best = dict.fromkeys(rivals, float("inf"))
    for turn in range(warmup + rounds):
        for name, work in rivals.items():
            if setup is not None:
                setup()
            seconds = _seconds(work)
            if turn >= warmup:
                best[name] = min(best[name], seconds)
    return best


def paired_ratio(one: Work, other: Work, *, rounds: int) -> float:
    """Median over rounds of time(one) / time(other), the order swapped each round.

    For differences of a few per cent: the two runs of a pair share the machine's mood.
    """
    ratios = []
    for turn in range(rounds + 2):
        first, second = (one, other) if turn % 2 else (other, one)
        a, b = _seconds(first), _seconds(second)
        ratios.append(a / b if turn % 2 else b / a)
    ratios = sorted(ratios[2:])
    return ratios[len(ratios) // 2]


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
