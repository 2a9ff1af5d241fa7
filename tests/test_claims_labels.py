"""Claims about random labels, judged from records with numbers by hand."""

import pytest
from claim_parts import LABELS, SPARSER, holds
from record_parts import record_with

from snip.experiments.kinds import Record


def fig4(dense: float, pruned: float, decayed: float) -> Record:
    made = record_with("fig4", lambda _: [0.5])
    for row in made["rows"]:
        error = 0.01 if "true" in row["label"] else dense
        error = pruned if row["label"] == "pruned 99%, random labels" else error
        error = decayed if "L2" in row["label"] else error
        row["runs"][0]["curve"] = {"train_error": [0.9, error]}
    return made


def test_random_labels_by_hand() -> None:
    assert holds(LABELS, fig4=fig4(0.1, 0.85, 0.2)) == [True]
    assert holds(LABELS, fig4=fig4(0.1, 0.2, 0.6)) == [False]
    assert holds(LABELS, fig4=fig4(0.1, 0.85, 0.6)) == [False]  # L2 keeps it from fitting
    assert holds(LABELS, fig4=fig4(0.85, 0.85, 0.2)) == [False]
    (fact,) = LABELS.facts({"fig4": fig4(0.1, 0.85, 0.2)})
    assert "pruned 99%, random labels: 85%" in fact.text
    assert fact.alone
    few = record_with("fig4", lambda row: [0.5] if row.config.sparsity else [])
    (fact,) = LABELS.facts({"fig4": few})
    assert (fact.holds, fact.missing) == (None, True)


def test_a_seed_that_diverged_is_not_forgotten() -> None:
    made = fig4(0.1, 0.85, 0.2)
    lost = {"run": "x", "seed": 1, "error": "the loss is nan", "diverged": True}
    made["rows"][1]["failed"] = [lost]
    (fact,) = LABELS.facts({"fig4": made})
    assert fact.holds is None
    assert f"{made['rows'][1]['label']}: diverged" in fact.text


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ((0.02, 0.01, 0.01, 0.02, 0.3, 0.9, 1.4, 2.2), True),  # 0.01 less is nothing
        ((0.02, 0.01, 0.01, 0.9, 0.3, 0.9, 1.4, 2.2), False),
        ((0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.05), False),
        ((0.02, None, 0.01, 0.02, 0.3, 0.9, 1.4, 2.2), None),
        ((0.02, None, 0.01, 0.9, 0.3, 0.9, 1.4, 2.2), False),  # one fall is enough
    ],
)
def test_the_loss_on_random_labels_rises_with_the_sparsity(losses, expected) -> None:
    made = record_with("figB", lambda _: [0.5])
    for row, loss in zip(made["rows"], losses, strict=True):
        row["runs"] = [] if loss is None else row["runs"]
        for run in row["runs"]:
            run["curve"] = {"train_loss": [2.3, loss]}
    (fact,) = SPARSER.facts({"figB": made})
    assert fact.holds is expected
    assert "reference 0.02; " in fact.text
    assert ("10% not run yet" in fact.text) is fact.missing is (None in losses)
    assert ("from 50% to 70% it falls by 0.60" in fact.text) is (0.9 in losses[:4])
    assert fact.alone
