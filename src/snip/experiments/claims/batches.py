"""Claims about the images that a network is scored with: figure 3, and the ablations."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise

from snip.experiments.ablation import base_of
from snip.experiments.claims.facts import (
    Fact,
    Records,
    beside,
    is_run,
    network_at,
    number,
    seed_differences,
)
from snip.experiments.fig3 import CORRELATION
from snip.experiments.gap import GAP, GAP_CONV, LARGE_BATCH
from snip.experiments.kinds import Record
from snip.experiments.records.chance import Spread, chance, is_above
from snip.experiments.records.comparison import LEAST_SEEDS, gains_by_seed, has_few_seeds

USUAL = 100  # images, which the paper scores with everywhere else


def larger_helps(records: Records) -> Iterator[Fact]:
    """The largest batch of figure 3 and of the ablations beside smaller ones."""
    rows = records.get("fig3", {"rows": []})["rows"]
    if rows:
        largest = max(rows, key=_size)
        for other in (min(rows, key=_size), next(row for row in rows if _size(row) == USUAL)):
            yield _beside("fig3", largest, other)
    for name in (GAP.name, GAP_CONV.name):
        record = records.get(name, {"rows": []})
        for row in (one for one in record["rows"] if one["label"] == LARGE_BATCH):
            yield _beside(name, row, base_of(row, record))


def _beside(name: str, row: Record, other: Record) -> Fact:
    """A large batch beside a smaller one, seed by seed."""
    about = f"{network_at(row)} ({name}), scored with"
    both = [_told(one) for one in (other, row)]
    if not (is_run(row) and is_run(other)):
        return Fact(f"{about} {'; '.join(both)}", missing=True)
    told = f"{about} {'; '.join(both)}; {seed_differences(row, other)}"
    return Fact(told, gains_by_seed(row, other), few=has_few_seeds(row, other))


def _told(row: Record) -> str:
    said = f"{number(row)}{beside(row)}" if is_run(row) else "not run yet"
    return f"{_size(row):,} images {said}"


def _size(row: Record) -> int:
    return int(row["config"]["score_batch_size"])


def near_the_mean(records: Records) -> Iterator[Fact]:
    """How like the mean image the maps of figure 3 are, from each batch to the next larger one."""
    rows = sorted(records.get("fig3", {"rows": []})["rows"], key=_size)
    for smaller, larger in pairwise(rows):
        about = f"fig3: scored with {_size(smaller):,} and {_size(larger):,} images"
        if not (smaller["runs"] and larger["runs"]):
            yield Fact(f"{about}: not both are run yet", missing=True)
            continue
        means = [statistics.mean(_by_seed(row).values()) for row in (smaller, larger)]
        told = (
            f"{about} the maps correlate with the mean image by {means[0]:.3f} and {means[1]:.3f}"
        )
        rises = _rises(smaller, larger)
        if len(rises) < LEAST_SEEDS:
            yield Fact(told, few=True)
            continue
        rise, moved = statistics.mean(rises), chance(Spread(statistics.stdev(rises), len(rises)))
        told += f"; seed by seed it rises by {round(rise, 3) + 0.0:.3f}"  # no negative zero
        yield Fact(f"{told}, of which chance explains {moved:.3f}", is_above(rise, moved))


def _rises(smaller: Record, larger: Record) -> list[float]:
    one, other = _by_seed(smaller), _by_seed(larger)
    return [other[seed] - one[seed] for seed in one.keys() & other.keys()]


def _by_seed(row: Record) -> dict[int, float]:
    return {run["seed"]: run[CORRELATION] for run in row["runs"]}
