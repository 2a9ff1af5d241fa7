"""How far chance alone moves a mean over seeds, or the difference of two."""

from __future__ import annotations

import math
from typing import NamedTuple

# Student's t for 1, 2, ... degrees of freedom: in 95 of 100 cases a mean is less than so many of
# its standard errors away from the true one. Few seeds know their own deviation badly.
STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
ROUNDING = 1e-9  # of a whole number of degrees that is computed


class Sample(NamedTuple):
    """The standard deviation of some seeds, and how many they are."""

    deviation: float
    seeds: int


def student(freedom: float) -> float:
    """How many standard errors chance explains; from 20 degrees of freedom on the same."""
    return STUDENT[min(int(freedom + ROUNDING), len(STUDENT)) - 1]


def chance(*samples: Sample) -> float:
    """How far the mean of a sample, or the difference of the means of two, is moved by chance.

    In 95 of 100 cases it is moved by less. The samples may have other deviations (Welch's test).
    """
    squares = [(one.deviation**2 / one.seeds, one.seeds - 1) for one in samples]
    whole = sum(square for square, _ in squares)
    spread = sum(square**2 / free for square, free in squares)
    freedom = whole**2 / spread if spread else sum(free for _, free in squares)
    return student(freedom) * math.sqrt(whole)
