"""What figure 3 and the ablations say of the images that a network is scored with."""

import pytest
from claim_parts import BATCHES, NEAR_MEAN, facts_of, holds
from record_parts import around, record_with

from snip.experiments.kinds import Row


@pytest.mark.parametrize(
    ("largest", "expected"), [(0.0190, True), (0.0191, None), (0.0209, None), (0.0210, False)]
)
def test_scoring_batches_by_hand(largest: float, expected: bool | None) -> None:
    """Six seeds differ by a deviation of 0.09 points: chance explains 0.094 points."""

    def errors(row: Row) -> list[float]:
        return [largest] * 6 if row.config.score_batch_size == 10_000 else 2 * around(0.02)

    fact, _ = BATCHES.facts({"fig3": record_with("fig3", errors)})
    assert fact.holds is expected
    assert "scored with 1 images 2.00 ± 0.09% (6 seeds), the paper 1.94% (agrees); " in fact.text
    points = 100 * (largest - 0.02)
    said = f"{points:+.2f} points over the 6 seeds of both, with a standard error of 0.04"
    assert fact.text.endswith(said)
    for name in ("gap", "gap-conv"):
        found = {name: record_with(name, errors)}
        assert [fact.holds for fact in BATCHES.facts(found)] == [expected, expected]


def test_large_batches_that_are_not_run_are_said() -> None:
    def errors(row: Row) -> list[float]:
        return around(0.01) if row.label == "base" and row.config.sparsity == 0.98 else []

    facts = list(BATCHES.facts({"gap-conv": record_with("gap-conv", errors)}))
    assert [fact.text for fact in facts] == [
        "lenet-5-caffe at 98% (gap-conv), scored with 100 images 1.00 ± 0.10% (3 seeds), the paper "
        "0.8% (agrees by its rounding); 10,000 images not run yet",
        "lenet-5-caffe at 99% (gap-conv), scored with 100 images not run yet; 10,000 images not "
        "run yet",
    ]
    assert all(fact.missing and fact.holds is None for fact in facts)


@pytest.mark.parametrize(("threes", "expected"), [(1, None), (2, True)])
def test_of_fewer_seeds_a_difference_must_be_clearer(threes: int, expected: bool | None) -> None:
    """0.2 points are 3.5 standard errors of three seeds, of which chance explains 4.3."""

    def errors(row: Row) -> list[float]:
        large = row.config.score_batch_size == 10_000
        return [0.018] * 3 * threes if large else threes * around(0.02)

    fact, _ = BATCHES.facts({"fig3": record_with("fig3", errors)})
    assert fact.holds is expected
    assert f"-0.20 points over the {3 * threes} seeds of both" in fact.text


def test_the_largest_batch_is_held_against_the_smallest_and_the_usual_one() -> None:
    def errors(row: Row) -> list[float]:
        sizes = {10: 0.03, 100: 0.02, 10_000: 0.01}
        size = row.config.score_batch_size
        return around(sizes[size]) if size in sizes else []

    smallest, usual = BATCHES.facts({"fig3": record_with("fig3", errors)})
    assert (smallest.holds, smallest.missing) == (None, True)
    assert "scored with 1 images not run yet; 10,000 images 1.00" in smallest.text
    assert usual.holds is True
    assert "scored with 100 images 2.00" in usual.text


def test_maps_come_nearer_to_the_mean_image_from_batch_to_batch() -> None:
    record = record_with("fig3", lambda _: around(0.02))
    for number, row in enumerate(record["rows"]):
        for seed, run in enumerate(row["runs"]):
            run["correlation"] = (0.5, 0.7, 0.9, 0.9, 0.8)[number] + 0.01 * seed
    record["rows"][3]["runs"][0]["correlation"] += 0.01  # of one seed alone
    assert holds(NEAR_MEAN, fig3=record) == [True, True, None, False]
    told = [fact.text for fact in facts_of(NEAR_MEAN, fig3=record)]
    assert (
        "with 1 and 10 images the maps correlate with the mean image by 0.510 and 0.710" in told[0]
    )
