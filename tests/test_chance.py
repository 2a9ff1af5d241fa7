"""How far chance moves means, against Student's density and by hand."""

import math

import pytest

from snip.experiments.records.chance import STUDENT, Sample, chance, student


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
    assert student(1000) == student(20)


def test_one_mean_and_the_difference_of_two() -> None:
    assert chance(Sample(0.3, 9)) == pytest.approx(2.306 * 0.1)
    alike = chance(Sample(0.3, 9), Sample(0.3, 9))
    assert alike == pytest.approx(2.120 * 0.1 * math.sqrt(2))  # 16 degrees
    # What is known of the wild one alone decides: Welch's degrees are its own.
    assert chance(Sample(0.3, 3), Sample(0.0, 20)) == pytest.approx(4.303 * 0.3 / math.sqrt(3))
    assert chance(Sample(0.0, 3), Sample(0.0, 3)) == 0.0
