"""The one timing loop. On a noisy machine the ways take turns, and the best turn of each counts."""

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
    """Seconds of the fastest turn of each way, after `warmup` turns that do not count.

    There are at least `rounds` turns, and more until each way has had about `seconds`, but no more
    than `most`. `shown` passes the turns on, as a progress bar does. `setup` runs before each turn
    and is not timed. A turn repeats its work for at least `burst` seconds and its mean counts: the
    steps of a training follow one another, and a single short step would be timed with the caches
    that the other ways left behind. `clock` is what turns are timed by: `time.thread_time` counts
    only this thread's work, where others share the machine.
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
    """Seconds of the fastest turn of a single way."""
    return best_times({"": work}, rounds=rounds, seconds=seconds, warmup=warmup)[""]


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """What a work that is done once gives, and its seconds."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _mean_time(work: Work, least: float, clock: Clock) -> float:
    calls, start = 0, clock()
    while True:
        work()
        calls += 1
        passed = clock() - start
        if passed >= least:
            return passed / calls
