"""How far chance moves means, against Student's density and by hand."""

import math
from itertools import combinations

import pytest

from snip.experiments.records.chance import STUDENT, Spread, chance, is_above, ranks_above, student


def inside(bound: float, freedom: int, steps: int = 20_000) -> float:
    """The probability that |t| is below a bound, by Simpson's rule over Student's density."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)

    def density(t: float) -> float:
        return scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)

    width = bound / steps
    inner = sum((4 if i % 2 else 2) * density(i * width) for i in range(1, steps))
    return 2 * (density(0) + inner + density(bound)) * width / 3


@pytest.mark.parametrize("freedom", range(1, len(STUDENT) + 1))
def test_chance_stays_within_in_95_of_100_cases(freedom: int) -> None:
    assert inside(student(freedom), freedom) == pytest.approx(0.95, abs=5e-5)


def test_degrees_are_rounded_down_and_many_are_as_twenty() -> None:
    assert student(2.99) == student(2) == 4.303
    assert student(3 - 1e-12) == student(3)
    assert student(0.5) == student(1)
    assert student(1000) == student(20)


def test_one_mean_and_the_difference_of_two() -> None:
    assert chance(Spread(0.3, 9)) == pytest.approx(2.306 * 0.1)
    alike = chance(Spread(0.3, 9), Spread(0.3, 9))
    assert alike == pytest.approx(2.120 * 0.1 * math.sqrt(2))  # 16 degrees
    # What is known of the wild one alone decides: Welch's degrees are its own.
    assert chance(Spread(0.3, 3), Spread(0.0, 20)) == pytest.approx(4.303 * 0.3 / math.sqrt(3))
    assert chance(Spread(0.0, 3), Spread(0.0, 3)) == 0.0


def test_a_difference_that_chance_explains_says_nothing() -> None:
    assert [is_above(one, 0.1) for one in (0.11, 0.1, -0.1, -0.11)] == [True, None, None, False]


# The largest number of pairs in the wrong order that is not explained by chance, from printed
# tables of Mann and Whitney's test (two sides, 5 of 100 cases).
@pytest.mark.parametrize(
    ("ours", "theirs", "wrong"),
    [(4, 4, 0), (3, 5, 0), (5, 5, 2), (6, 6, 5), (8, 8, 13), (5, 20, 20)],
)
def test_ranks_by_printed_tables(ours: int, theirs: int, wrong: int) -> None:
    for pairs, expected in ((wrong, True), (wrong + 1, None)):
        high, low = _with_wrong_pairs(ours, theirs, pairs)
        assert ranks_above(high, low) is expected
        assert ranks_above(low, high) is (None if expected is None else False)
    assert ranks_above([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]) is None  # which no count of three can


def _with_wrong_pairs(ours: int, theirs: int, pairs: int) -> tuple[list[float], list[float]]:
    """Values without ties, ours above theirs but for so many pairs."""
    low = [float(one) for one in range(theirs)]
    high = []
    for index in range(ours):
        below = min(pairs, theirs)
        pairs -= below
        high.append(theirs - below - 0.5 + index / 100)
    return high, low


def test_ranks_with_ties_against_all_ways_to_deal_them_out() -> None:
    values = [0, 0, 0, 1, 1, 2, 2, 2, 3]

    def lead(chosen: tuple[int, ...]) -> float:
        others = [values[i] for i in range(len(values)) if i not in chosen]
        pairs = [(values[i], other) for i in chosen for other in others]
        return sum((a > b) - (a < b) for a, b in pairs)

    ways = list(combinations(range(len(values)), 4))
    leads = [lead(way) for way in ways]
    decided = 0
    for way, found in zip(ways, leads, strict=True):
        ours = [values[i] for i in way]
        theirs = [values[i] for i in range(len(values)) if i not in way]
        rare = sum(abs(one) >= abs(found) for one in leads) <= 0.05 * len(ways)
        assert ranks_above(ours, theirs) is (found > 0 if rare else None)
        decided += rare
    assert decided


def test_ranks_of_many_seeds_are_judged_as_quickly_as_those_of_few() -> None:
    """By the normal distribution: of 40 and 40 a count of 596 of 1600 pairs is just rare enough."""
    for pairs, expected in ((596, True), (597, None)):
        ours, theirs = _with_wrong_pairs(40, 40, pairs)
        assert ranks_above(ours, theirs) is expected
        assert ranks_above(theirs, ours) is (None if expected is None else False)
