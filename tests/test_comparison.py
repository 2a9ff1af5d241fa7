"""The rules by which the paper's claims are judged, on rows with numbers by hand."""

from collections.abc import Callable

import pytest
from record_parts import around, record_with

from snip.experiments.claims.facts import number
from snip.experiments.kinds import Record
from snip.experiments.records.comparison import (
    differs_no_more,
    gains,
    gains_by_seed,
    loses_no_more,
    ranks_higher,
)


def row_of(*errors: float) -> Record:
    found = record_with("table1", lambda row: errors if row.config.sparsity == 0.95 else [])
    return next(row for row in found["rows"] if row["runs"])


def on_tiny_imagenet(*errors: float) -> Record:
    found = record_with("tableC", lambda row: errors if row.config.sparsity else [])
    return next(row for row in found["rows"] if row["runs"])


def test_a_loss_and_a_gain_are_judged_by_what_chance_explains() -> None:
    """Of two threes of seeds with a deviation of 0.1 points it explains 0.227 points."""
    base = row_of(*around(0.02))
    assert loses_no_more(row_of(*around(0.0187)), base) is True  # at worst 0.097 above
    assert loses_no_more(row_of(*around(0.0188)), base) is None
    assert loses_no_more(row_of(*around(0.0232)), base) is None
    assert loses_no_more(row_of(*around(0.0233)), base) is False  # at best 0.103 above
    assert loses_no_more(row_of(*around(0.0233)), base, allowed=0.1) is None
    assert loses_no_more(row_of(*around(0.0233)), base, allowed=0.5) is True
    assert gains(row_of(*around(0.0177)), base) is True
    assert gains(row_of(*around(0.0178)), base) is None  # too near to tell, on either side
    assert gains(row_of(*around(0.0222)), base) is None
    assert gains(row_of(*around(0.0223)), base) is False
    # Of four times as many seeds chance explains 0.07 points.
    many = row_of(*4 * around(0.02))
    assert loses_no_more(row_of(*4 * around(0.0218)), many) is False
    assert loses_no_more(row_of(*4 * around(0.0216)), many) is None
    assert loses_no_more(row_of(*4 * around(0.0202)), many) is True
    for rule in (loses_no_more, gains, ranks_higher):
        assert rule(row_of(0.02), base) is None


def test_ranks_see_what_means_of_two_kinds_of_runs_hide() -> None:
    """A GRU learns or it does not: here 2 of 5 seeds are near the good ones, 3 at chance."""
    good = row_of(0.018, 0.0181, 0.0182, 0.0183, 0.0184)
    assert ranks_higher(row_of(0.019, 0.0191, 0.9, 0.9, 0.9), good) is True
    assert ranks_higher(row_of(0.0179, 0.0182, 0.0183, 0.0185, 0.9), good) is None
    assert ranks_higher(good, row_of(0.019, 0.0191, 0.9, 0.9, 0.9)) is False
    assert ranks_higher(row_of(0.9, 0.9, 0.9), row_of(0.01, 0.01, 0.01)) is None  # too few
    assert ranks_higher(row_of(0.9, 0.9), row_of(*[0.01] * 20)) is None


def test_seeds_that_learnt_and_seeds_that_did_not_tell_nothing() -> None:
    base = row_of(*around(0.0133))
    wild = row_of(0.013, 0.013, 0.45)
    assert loses_no_more(wild, base) is None
    assert gains(base, wild) is None


def test_a_seed_that_diverged_is_a_loss_and_is_told() -> None:
    base, row = row_of(*around(0.02)), row_of(*around(0.02))
    row["failed"] = [{"run": "x", "seed": 3, "error": "the loss is nan", "diverged": True}]
    assert loses_no_more(row, base) is False
    assert number(row) == "2.00 ± 0.10% (3 seeds, 1 more diverged)"
    row["failed"][0].pop("diverged")  # a full disk says nothing of the method
    assert loses_no_more(row, base, allowed=0.2) is True


def lost(row: Record, count: int) -> Record:
    """The row with so many seeds more, which diverged."""
    failed = [
        {"run": f"x{i}", "seed": 90 + i, "error": "nan", "diverged": True} for i in range(count)
    ]
    return row | {"failed": failed}


@pytest.mark.parametrize("rule", [gains, gains_by_seed])
def test_nothing_is_gained_by_a_row_whose_seeds_diverge(
    rule: Callable[[Record, Record], bool | None],
) -> None:
    better, base = row_of(*2 * around(0.01)), row_of(*2 * around(0.02))
    assert rule(better, base) is True
    assert rule(lost(better, 1), base) is None
    assert rule(lost(better, 6), base) is None  # six of twelve err less, six more
    assert rule(lost(base, 6), better) is False


def test_seeds_that_diverged_rank_last() -> None:
    good = row_of(0.018, 0.0181, 0.0182, 0.0183, 0.0184)
    assert ranks_higher(row_of(0.0179, 0.018), good) is None
    assert ranks_higher(lost(row_of(0.0185, 0.019), 3), good) is True
    assert number(lost(good, 2)).endswith("(5 seeds, 2 more diverged)")


def test_a_seed_that_learns_nothing_loses_where_the_base_learns() -> None:
    base = row_of(*around(0.02))
    assert loses_no_more(row_of(0.02, 0.0201, 0.9), base) is False
    assert loses_no_more(row_of(0.02, 0.9, 0.9), base) is False
    assert loses_no_more(row_of(0.02, 0.0201, 0.4), base) is None  # more than half is learnt


def test_what_learning_nothing_means_depends_on_the_classes() -> None:
    """On Tiny-ImageNet nobody is below a half, and guessing has 99.5%."""
    hard = on_tiny_imagenet(*around(0.63))
    assert loses_no_more(on_tiny_imagenet(*around(0.628)), hard) is True
    assert loses_no_more(on_tiny_imagenet(0.62, 0.63, 0.995), hard, allowed=3.0) is False
    assert loses_no_more(on_tiny_imagenet(0.62, 0.63, 0.8), hard, allowed=3.0) is None
    nothing = on_tiny_imagenet(0.995, 0.995, 0.995)
    assert loses_no_more(nothing, nothing, allowed=3.0) is True


def test_what_counts_as_equal_grows_with_the_error() -> None:
    """Networks of 60% error spread more than those of 2%, and nobody minds a point of it."""
    hard = row_of(*4 * around(0.60))  # of which 2% are 1.2 points
    assert loses_no_more(row_of(*4 * around(0.611)), hard) is True
    assert loses_no_more(row_of(*4 * around(0.612)), hard) is None
    assert loses_no_more(row_of(*4 * around(0.613)), hard) is False


def test_seeds_that_err_alike_are_known_no_better_than_by_one_image() -> None:
    """Of three and three, chance then explains 0.023 points; of pairs 0.025."""
    base, close, apart = (row_of(*[error] * 3) for error in (0.02, 0.0198, 0.0197))
    assert gains(close, base) is None
    assert gains(apart, base) is True
    assert gains_by_seed(close, base) is None
    assert gains_by_seed(apart, base) is True


def test_two_seeds_decide_nothing() -> None:
    """Of two, the more they differ the more they would be allowed to lose."""
    base = row_of(*around(0.0161))
    assert loses_no_more(row_of(0.016, 0.030), base) is None
    assert loses_no_more(row_of(0.022, 0.024), base) is None
    assert gains(row_of(0.010, 0.011), base) is None


def test_a_row_that_breaks_down_is_no_small_difference() -> None:
    base = row_of(*around(0.02))
    assert differs_no_more(row_of(*around(0.0201)), base, allowed=0.2) is True
    assert differs_no_more(row_of(*around(0.03)), base, allowed=0.1) is False
    for broken in (row_of(0.02, 0.0201, 0.9), lost(row_of(*around(0.02)), 18)):
        assert differs_no_more(broken, base, allowed=0.1) is False
        assert differs_no_more(base, broken, allowed=0.1) is False
    assert differs_no_more(row_of(0.02), base, allowed=0.1) is None


@pytest.mark.parametrize("rule", [gains, gains_by_seed])
def test_a_base_whose_seeds_diverge_is_gained_upon(
    rule: Callable[[Record, Record], bool | None],
) -> None:
    """By the order of the seeds: one that diverges may do so by chance, and five of six may not."""
    row, base = row_of(*2 * around(0.02)), row_of(*2 * around(0.02))
    assert rule(row, base) is None
    assert rule(row, lost(base, 1)) is None
    assert rule(row, lost(row_of(0.02), 5)) is True
    assert rule(row, lost(base | {"runs": [], "selected": None}, 3)) is True
    assert rule(lost(row, 1), lost(base, 1)) is None
    assert rule(row_of(*2 * around(0.03)), lost(base, 1)) is False
    assert loses_no_more(row, lost(base, 1)) is None


def test_a_row_of_which_no_seed_is_known_says_why() -> None:
    bare = row_of(0.02) | {"runs": [], "selected": None}
    assert number(lost(bare, 2)) == "2 seeds diverged"
    full = {"run": "y", "seed": 5, "error": "the disk is full"}
    one = lost(bare, 1)
    assert number(one | {"failed": [*one["failed"], full]}) == "1 seed diverged, 1 failed"
