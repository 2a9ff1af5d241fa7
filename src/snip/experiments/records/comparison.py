"""A row beside another: one rule for losses, one for gains, both by what chance explains.

A row's error is a mean over seeds, which chance moves (`records/chance.py`). A difference of two
rows counts from where chance does not explain it; where it is smaller, nobody can tell whether
there is one. A seed that diverged has no error: it loses, and no mean of the others can make up for
it.
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from snip.experiments.kinds import Record
from snip.experiments.records.chance import Sample, chance
from snip.experiments.records.summary import DEVIATIONS

LEAST_SEEDS = 3  # of fewer, a deviation says nothing
MARGIN = (
    0.1  # points that count as equal, the last digit of the paper's table 1: no two are exactly
)
ROUNDING = 1e-9  # differences that are alike but for it have no standard error
COLLAPSED = 0.5  # an error above this is of a network that learnt nothing, where its base did learn


def diverged(row: Record) -> int:
    """How many seeds of a row diverged."""
    return sum(bool(one.get("diverged")) for one in row.get("failed", ()))


def is_dense_of(row: Record, model: str) -> bool:
    """Whether a row is of this network with nothing removed."""
    return bool(row["config"]["model"] == model and not row["config"]["sparsity"])


def loses_no_more(row: Record, base: Record, allowed: float = 0.0) -> bool | None:
    """Whether the error is above the base's by at most `allowed` points.

    No if it is above that by more than chance explains; yes if it is at most `MARGIN` above even
    where chance made it look good; between the two it needs more seeds. A seed that diverges, or
    learns nothing where all of the base's learn, loses everything. None also if the base diverges,
    if there are too few seeds of either, or if they differ so much that nothing could be told.
    """
    if diverged(base):
        return None
    if diverged(row) or _collapsed(row, base):
        return False
    moved = _chance(row, base)
    if moved is None:
        return None
    beyond = _rise(row, base) - allowed
    if beyond > moved:
        return False
    return True if beyond + moved <= MARGIN else None


def differs_no_more(row: Record, base: Record, allowed: float) -> bool | None:
    """Whether the errors are at most `allowed` points apart, by the same rule to either side."""
    both = [loses_no_more(row, base, allowed), loses_no_more(base, row, allowed)]
    if False in both:
        return False
    return None if None in both else True


def gains(row: Record, base: Record) -> bool | None:
    """Whether the error is below the base's: False if it is above; None if chance explains it."""
    if diverged(row) or diverged(base):
        return _alone_converges(row, base)
    moved = _chance(row, base)
    return None if moved is None else _is_above(-_rise(row, base), moved)


def by_seed(row: Record, base: Record) -> list[float]:
    """By how many points each seed's error is above that of the same seed in the base.

    Runs of one seed have the draws and the order of the data in common.
    """
    theirs = {run["seed"]: run["test_error"] for run in base["runs"]}
    pairs = [(run["test_error"], theirs.get(run["seed"])) for run in row["runs"]]
    return [100 * (ours - other) for ours, other in pairs if other is not None]


class Paired(NamedTuple):
    """The mean difference of seeds that two rows have in common, in points."""

    mean: float
    error: float  # its standard error; 0 where there is none, or nothing but rounding
    seeds: int


def paired(row: Record, base: Record) -> Paired | None:
    """A row beside its base, seed by seed; None if no seed is in both."""
    found = by_seed(row, base)
    if not found:
        return None
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return Paired(statistics.mean(found), error if error > ROUNDING else 0.0, len(found))


def gains_by_seed(row: Record, base: Record) -> bool | None:
    """`gains` by the differences of the seeds that both have; None if these are too few."""
    if diverged(row) or diverged(base):
        return _alone_converges(row, base)
    found = paired(row, base)
    if found is None or found.seeds < LEAST_SEEDS:
        return None
    deviation = found.error * math.sqrt(found.seeds)
    return _is_above(-found.mean, chance(Sample(deviation, found.seeds)))


def paper_rise(row: Record, base: Record) -> float | None:
    """By how many points the error is above the base's in the paper; None where it says nothing."""
    if not (row["paper"] and base["paper"]):
        return None
    return round(float(row["paper"]) - float(base["paper"]), 4)


def ranks_higher(row: Record, base: Record) -> bool | None:
    """Whether seeds err more often than the base's, or less: Mann and Whitney's count of pairs.

    For errors of two kinds, of runs that learnt and of runs that did not, whose mean and deviation
    say little. Of all pairs of a seed here and a seed there, more than half must err more here, by
    more than two standard errors of that count, or less than half by as much. Seeds that diverged
    err most. None for so few seeds that no count could.
    """
    ours, theirs = (
        [run["test_error"] for run in one["runs"]] + [math.inf] * diverged(one)
        for one in (row, base)
    )
    pairs = len(ours) * len(theirs)
    error = math.sqrt(pairs * (len(ours) + len(theirs) + 1) / 12)
    if pairs / 2 <= DEVIATIONS * error:
        return None
    above = sum((a > b) + 0.5 * (a == b) for a in ours for b in theirs)
    return _is_above(above - pairs / 2, DEVIATIONS * error)


def _is_above(difference: float, moved: float) -> bool | None:
    """Whether a difference is above zero or, False, below it; None if chance may have moved it."""
    if abs(difference) <= moved:
        return None
    return difference > 0


def _alone_converges(row: Record, base: Record) -> bool | None:
    """Of two rows of which one diverges at least: whether the row gains, because the other does.

    None if it errs more than the seeds of the base that converged, or has too few seeds.
    """
    if diverged(row):
        return False
    is_no_worse = not base["runs"] or _rise(row, base) <= 0
    return True if is_no_worse and len(row["runs"]) >= LEAST_SEEDS else None


def _collapsed(row: Record, base: Record) -> bool:
    """Whether a seed learnt nothing, while all seeds of the base did learn."""
    ours, theirs = ([run["test_error"] for run in one["runs"]] for one in (row, base))
    return bool(theirs) and max(theirs) < COLLAPSED <= max(ours, default=0.0)


def _rise(row: Record, base: Record) -> float:
    return float(row["selected"]["mean"] - base["selected"]["mean"])


def _chance(one: Record, other: Record) -> float | None:
    """How far chance moves the difference of two means; None where that cannot be told."""
    found = [row["selected"] for row in (one, other)]
    if min(len(row["runs"]) for row in (one, other)) < LEAST_SEEDS:
        return None
    if any(of["std"] is None or DEVIATIONS * of["std"] > of["mean"] for of in found):
        return None
    samples = (Sample(row["selected"]["std"], len(row["runs"])) for row in (one, other))
    return chance(*samples)
