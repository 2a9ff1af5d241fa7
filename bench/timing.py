"""Timing for a noisy machine: rivals take turns in one run, the best of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

Work = Callable[[], object]


def best_times(
    rivals: Mapping[str, Work],
    *,
    rounds: int,
    warmup: int = 1,
    setup: Work | None = None,
    burst: float = 0.0,
) -> dict[str, float]:
    """Seconds of the fastest round of each rival, taken in turns; `setup` before each is free.

    A turn lasts `burst` seconds at least, and its mean counts: steps of a training follow one
    another, and a short one would otherwise be timed with the caches its rivals left.
    """
    best = dict.fromkeys(rivals, float("inf"))
    for turn in range(warmup + rounds):
        for name, work in rivals.items():
            if setup is not None:
                setup()
            seconds = _burst(work, burst)
            if turn >= warmup:
                best[name] = min(best[name], seconds)
    return best


def paired_ratio(one: Work, other: Work, work: Work, *, rounds: int) -> float:
    """Median over rounds of the time of `work` after `one` over that after `other`.

    For differences of a few per cent: both run on the same tensors, and the two of a pair share
    the machine's mood; the order is swapped each round, and `work` runs once untimed after each
    change.
    """
    ratios = []
    for turn in range(rounds):
        times = {}
        for change in (one, other) if turn % 2 else (other, one):
            change()
            work()
            times[change] = _seconds(work)
        ratios.append(times[one] / times[other])
    ratios.sort()
    return ratios[len(ratios) // 2]


def _burst(work: Work, least: float) -> float:
    calls, start = 0, time.perf_counter()
    while True:
        work()
        calls += 1
        passed = time.perf_counter() - start
        if passed >= least:
            return passed / calls


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
