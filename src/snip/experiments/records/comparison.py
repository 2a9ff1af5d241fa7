"""A row beside another: whether it loses, gains or ranks higher, by what chance explains.

A row's error is a mean over seeds, which chance moves (`records/chance.py`). A difference of two
rows counts from where chance does not explain it; where it is smaller, nobody can tell whether
there is one. A seed that diverged has no error: no mean of the others can make up for it, and among
the seeds it ranks last.

Runs of one seed have draws and batches in common. Where two rows differ in nothing else than what
is scored, their seeds are compared one by one (`gains_by_seed`); a dense and a pruned network have
too little in common for that, and are compared by their means (`gains`, `loses_no_more`).
"""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from snip.data import DATASETS
from snip.experiments.kinds import Record
from snip.experiments.records.chance import Spread, chance, is_above, ranks_above
from snip.experiments.records.summary import DEVIATIONS
from snip.training import paper_schedule

LEAST_SEEDS = 3  # of fewer, a deviation says nothing
# No two networks are exactly equal. So many points apart they count as equal: the last digit of the
# paper's table 1, or a share of the base's error, where networks err more and spread as much more.
MARGIN, MARGIN_SHARE = 0.1, 0.02
STEP = 0.01  # points, one test image of 10,000: seeds that err alike are known no better than that
DIGITS = 9  # of a difference in points; what is beyond them is rounding


def diverged(row: Record) -> int:
    """How many seeds of a row diverged."""
    return sum(bool(one.get("diverged")) for one in row.get("failed", ()))


def has_few_seeds(*rows: Record) -> bool:
    """Whether one of the rows has too few seeds to say how much they differ."""
    return any(len(row["runs"]) + diverged(row) < LEAST_SEEDS for row in rows)


def is_full_schedule(config: Record) -> bool:
    """Whether a run has all steps and, where it trains by SGD, the paper's rate.

    The paper has rates and drops. How many steps there are on MNIST it does not say: 75,000 are
    ours; on the other data sets they are those of a command of its authors.
    """
    paper, train = paper_schedule(config["dataset"]), config["train"]
    rate = train.get("lr") if train.get("optimizer") == paper.optimizer else paper.lr
    return bool(train["iterations"] == paper.iterations and rate == paper.lr)


def is_dense_of(row: Record, model: str) -> bool:
    """Whether a row is of this network with nothing removed."""
    return bool(row["config"]["model"] == model and not row["config"]["sparsity"])


def loses_no_more(row: Record, base: Record, allowed: float = 0.0) -> bool | None:
    """Whether the error is above the base's by at most `allowed` points.

    A little more counts as equal (`MARGIN`). Yes if it is within that even where chance made it
    look good, no if it is not even where chance made it look bad; between the two it needs more
    seeds. A seed that diverges, or learns nothing where all of the base's learn, loses everything.
    None also if the base diverges, if there are too few seeds of either, or if they differ so much
    that nothing could be told.
    """
    if diverged(base):
        return None
    return _is_no_higher(row, base, allowed + _margin(base))


def differs_no_more(row: Record, base: Record, allowed: float) -> bool | None:
    """Whether the errors are at most `allowed` points apart, and what counts as equal.

    A seed that diverges or learns nothing is a difference, in whichever of the two it is.
    """
    most = allowed + _margin(base)
    both = [_is_no_higher(row, base, most), _is_no_higher(base, row, most)]
    if False in both:
        return False
    return None if None in both else True


def _is_no_higher(row: Record, base: Record, most: float) -> bool | None:
    """Whether the error is at most so many points above the base's; None if chance explains it."""
    if diverged(row) or _collapsed(row, base):
        return False
    moved = _chance(row, base)
    if moved is None:
        return None
    beyond = _rise(row, base) - most
    if beyond > moved:
        return False
    return True if beyond <= -moved else None


def _margin(base: Record) -> float:
    mean = base["selected"]["mean"] if base["selected"] else 0.0
    return max(MARGIN, MARGIN_SHARE * float(mean))


def gains(row: Record, base: Record) -> bool | None:
    """Whether the error is below the base's: False if it is above; None if chance explains it."""
    if diverged(row) or diverged(base):
        return _gains_by_ranks(row, base)
    moved = _chance(row, base)
    return None if moved is None else is_above(-_rise(row, base), moved)


def by_seed(row: Record, base: Record) -> list[float]:
    """By how many points each seed's error is above that of the same seed in the base."""
    theirs = {run["seed"]: run["test_error"] for run in base["runs"]}
    pairs = [(run["test_error"], theirs.get(run["seed"])) for run in row["runs"]]
    return [round(100 * (ours - other), DIGITS) for ours, other in pairs if other is not None]


class Paired(NamedTuple):
    """The mean difference of seeds that two rows have in common, in points."""

    mean: float
    spread: Spread  # at least that of one image; 0 of one seed

    @property
    def seeds(self) -> int:
        """How many they have in common."""
        return self.spread.seeds

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.spread.error


def paired(row: Record, base: Record) -> Paired | None:
    """A row beside its base, seed by seed; None if no seed is in both."""
    found = by_seed(row, base)
    if not found:
        return None
    deviation = max(statistics.stdev(found), STEP) if len(found) > 1 else 0.0
    mean = round(statistics.mean(found), DIGITS) + 0.0  # which makes a zero of a negative one
    return Paired(mean, Spread(deviation, len(found)))


def gains_by_seed(row: Record, base: Record) -> bool | None:
    """`gains` by the differences of the seeds that both have; None if these are too few."""
    if diverged(row) or diverged(base):
        return _gains_by_ranks(row, base)
    found = paired(row, base)
    if found is None or found.seeds < LEAST_SEEDS:
        return None
    return is_above(-found.mean, chance(found.spread))


def paper_rise(row: Record, base: Record) -> float | None:
    """By how many points the error is above the base's in the paper; None where it says nothing."""
    if not (row["paper"] and base["paper"]):
        return None
    return round(float(row["paper"]) - float(base["paper"]), 4)


def ranks_higher(row: Record, base: Record) -> bool | None:
    """Whether seeds err more often than the base's, or less, by more than chance explains.

    For errors of two kinds, of runs that learnt and of runs that did not, whose mean and deviation
    say little. Seeds that diverged err most. None for too few seeds.
    """
    ours, theirs = (
        [run["test_error"] for run in one["runs"]] + [math.inf] * diverged(one)
        for one in (row, base)
    )
    if min(len(ours), len(theirs)) < LEAST_SEEDS:
        return None
    return ranks_above(ours, theirs)


def _gains_by_ranks(row: Record, base: Record) -> bool | None:
    """`gains` where one of the two diverges at least, by the order of their seeds.

    A row that diverges gains nothing, however good its other seeds are.
    """
    higher = ranks_higher(row, base)
    return None if higher is None or (diverged(row) and not higher) else not higher


def _collapsed(row: Record, base: Record) -> bool:
    """Whether a seed has learnt less than half of what every seed of the base has.

    Where nothing is learnt, the error is that of guessing among the classes.
    """
    ours, theirs = ([run["test_error"] for run in one["runs"]] for one in (row, base))
    guessing = 1 - 1 / DATASETS[base["config"]["dataset"]].classes
    worst = max(theirs, default=guessing)
    return worst < guessing and max(ours, default=0.0) > (worst + guessing) / 2


def _rise(row: Record, base: Record) -> float:
    return float(row["selected"]["mean"] - base["selected"]["mean"])


def _chance(row: Record, base: Record) -> float | None:
    """How far chance moves the difference of two means; None where that cannot be told."""
    one, other = _spread(row), _spread(base)
    return None if one is None or other is None else chance(one, other)


def _spread(row: Record) -> Spread | None:
    """How much a row's seeds differ; None if they are too few, or differ too much to tell."""
    found, seeds = row["selected"], len(row["runs"])
    if seeds < LEAST_SEEDS or DEVIATIONS * found["std"] > found["mean"]:
        return None
    return Spread(max(found["std"], STEP), seeds)
