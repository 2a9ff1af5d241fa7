"""How far chance alone moves a mean over seeds, the difference of two, or the order of seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Student's t for 1, 2, ... degrees of freedom: by chance a mean is further than so many of its
# standard errors from the true one in 5 of 100 cases. Few seeds know their own deviation badly.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
RARE = 0.05  # the same 5 of 100 cases
NORMAL = 1.96  # the same, in standard deviations of a sum of many ranks
COUNTED = 625  # pairs of seeds: of more, all ways to deal them out take too long to count
ROUNDING = 1e-9  # a whole number of degrees may be computed as a little less


class Spread(NamedTuple):
    """The standard deviation of some seeds, and how many they are."""

    deviation: float
    seeds: int

    @property
    def error(self) -> float:
        """The standard error of their mean."""
        return self.deviation / math.sqrt(self.seeds)


def student(freedom: float) -> float:
    """How many standard errors chance explains; from 20 degrees of freedom on the same."""
    return STUDENT[min(max(int(freedom + ROUNDING), 1), len(STUDENT)) - 1]


def chance(*spreads: Spread) -> float:
    """How far the mean of some seeds, or the difference of two means, is moved by chance.

    In 95 of 100 cases it is moved by less. Two may have different deviations (Welch's test).
    """
    squares = [(one.deviation**2 / one.seeds, one.seeds - 1) for one in spreads]
    whole = sum(square for square, _ in squares)
    uncertain = sum(square**2 / free for square, free in squares)
    freedom = whole**2 / uncertain if uncertain else sum(free for _, free in squares)
    return student(freedom) * math.sqrt(whole)


def is_above(difference: float, moved: float) -> bool | None:
    """Whether a difference is above zero or, False, below it; None if chance may have moved it."""
    if abs(difference) <= moved:
        return None
    return difference > 0


def ranks_above(ours: Sequence[float], theirs: Sequence[float]) -> bool | None:
    """Whether ours rank above theirs or, False, below, by more than chance explains.

    Mann and Whitney's test: if both are drawn alike, every way to deal the values out between the
    two is as likely as this one. None if ours would rank as far from the middle in more than 5 of
    100 of these ways.
    """
    every = [*ours, *theirs]
    # Values that are equal share the mean of their ranks; twice a rank is always whole.
    ranks = {one: 2 * sum(b < one for b in every) + every.count(one) + 1 for one in every}
    middle = len(ours) * (len(every) + 1)
    lead = sum(ranks[one] for one in ours) - middle
    is_explained = _is_frequent if len(ours) * len(theirs) <= COUNTED else _is_within_normal
    fewer = min(len(ours), len(theirs))  # lead by as much as the others trail
    return None if is_explained([ranks[one] for one in every], fewer, lead) else lead > 0


def _is_frequent(ranks: Sequence[int], size: int, lead: int) -> bool:
    """Whether so many of the ranks are as far from the middle in many ways to choose them."""
    ways, middle = _sums(ranks, size), size * (len(ranks) + 1)
    as_far = sum(number for total, number in ways.items() if abs(total - middle) >= abs(lead))
    return as_far > RARE * sum(ways.values())


def _is_within_normal(ranks: Sequence[int], size: int, lead: int) -> bool:
    """The same for many ranks, whose sum is as good as normally distributed."""
    count, middle = len(ranks), len(ranks) + 1
    squares = sum((rank - middle) ** 2 for rank in ranks) / (count - 1)
    return abs(lead) <= NORMAL * math.sqrt(size * (count - size) / count * squares)


def _sums(values: Sequence[int], size: int) -> dict[int, int]:
    """Of all ways to choose so many of the values: how many have which sum."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]  # by how many are chosen
    for value in values:
        for chosen in range(size, 0, -1):
            for total, number in ways[chosen - 1].items():
                ways[chosen][total + value] = ways[chosen].get(total + value, 0) + number
    return ways[size]
