"""The one timing loop: rivals take turns, and the best turn of each counts.

Other work on the machine then slows all rivals alike, and only some turns of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count, islice
from typing import TypeVar

Result = TypeVar("Result")
Work = Callable[[], object]
Clock = Callable[[], float]
Turns = Callable[[Iterable[int]], Iterable[int]]


def best_times(
    ways: Mapping[str, Work],
    *,
    rounds: int,
    seconds: float = 0.0,
    most: int | None = None,
    warmup: int = 1,
    setup: Work | None = None,
    burst: float = 0.0,
    clock: Clock = time.perf_counter,
    shown: Turns = iter,
) -> dict[str, float]:
    """Seconds of the fastest turn of each rival, after `warmup` turns that do not count.

    There are at least `rounds` turns, more until each rival has had about `seconds`, and at most
    `most`. `shown` wraps the turns, for a progress bar. `setup` runs before each turn, untimed.
    A turn repeats its work for at least `burst` seconds and counts with the mean: training steps
    follow one another, and a single short one would run with caches filled by the other rivals.
    With `time.thread_time` as `clock` only this thread counts, not others that share the machine.
    """
    best = dict.fromkeys(ways, float("inf"))
    end = time.perf_counter() + seconds * len(ways)
    for turn in shown(islice(count(), None if most is None else warmup + most)):
        if turn >= warmup + rounds and time.perf_counter() >= end:
            break
        for name, work in ways.items():
            if setup is not None:
                setup()
            mean = _mean_time(work, burst, clock)
            if turn >= warmup:
                best[name] = min(best[name], mean)
    return best


def best_time(work: Work, *, rounds: int, seconds: float = 0.0, warmup: int = 1) -> float:
    """Seconds of the fastest turn of a single work."""
    return best_times({"": work}, rounds=rounds, seconds=seconds, warmup=warmup)[""]


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Do a work once; return its result and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _mean_time(work: Work, least: float, clock: Clock) -> float:
    """Mean seconds of a call, over calls that take `least` seconds together."""
    calls, start = 0, clock()
    while True:
        work()
        calls += 1
        passed = clock() - start
        if passed >= least:
            return passed / calls
