"""The order in which runs are done: seed by seed, the longest first, each after what it needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from snip.experiments.kinds import Row
from snip.experiments.sweep.work import Task
from snip.runs.in_phases import method_of
from snip.runs.pace import Pace

Asked = Callable[[str], bool]  # something that is so of a run's folder or not, by its name


def tasks_in_line(
    pairs: Iterable[tuple[int, Row]], pace: Pace, *, settled: Asked, finished: Asked
) -> list[Task]:
    """The runs of these seeds and rows that are not settled.

    A run that needs a first training comes after it; several may need the same one.
    """
    tasks: dict[str, Task] = {}
    for seed, row in sorted(pairs, key=lambda pair: _turn(pair[0], pair[1], pace)):
        config, first = row.at(seed), None
        if settled(config.folder_name):
            continue
        if method_of(config) is not None:
            needed = config.trained_first
            first = needed.folder_name
            if not finished(first):
                tasks.setdefault(first, Task(f"first training of {needed.model}", needed))
        tasks.setdefault(config.folder_name, Task(row.label, config, first))
    return list(tasks.values())


def together(seconds: Sequence[float], jobs: int) -> float:
    """How long some runs take, so many at a time: no less than the longest of them."""
    return max(sum(seconds) / min(jobs, len(seconds)), *seconds) if seconds else 0.0


def _turn(seed: int, row: Row, pace: Pace) -> tuple[int, float]:
    """Of one seed the longest come first: a long run at the end leaves the other jobs idle.

    So those come first of all whose length is not known: they may be long.
    """
    seconds = pace.seconds(row.config)
    return seed, -math.inf if seconds is None else -seconds
