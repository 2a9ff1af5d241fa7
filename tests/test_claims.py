"""Claims about what pruning costs, judged from records with numbers by hand."""

from collections.abc import Callable, Sequence

import pytest
from claim_parts import ANY, BETTER, ON_PAR, ONE_SHOT, facts_of, holds
from record_parts import around, record_with

from snip.experiments.claims import CLAIMS, verdict
from snip.experiments.kinds import Row


def lenets(pruned: float, dense: float | None, seeds: int = 1) -> Callable[[Row], Sequence[float]]:
    """LeNet-300-100 dense and pruned by SNIP, nothing else; `seeds` threes of seeds."""

    def errors(row: Row) -> list[float]:
        config = row.config
        if config.model != "lenet-300-100" or config.method != "snip":
            return []
        if config.sparsity:
            return seeds * around(pruned)
        return [] if dense is None else seeds * around(dense)

    return errors


def test_one_shot_may_lose_what_the_paper_loses() -> None:
    """At 98% the paper's own error rises by 0.7 points; at 95% it falls."""
    facts = facts_of(ONE_SHOT, table1=record_with("table1", lenets(0.0227, 0.0170)))
    assert [fact.holds for fact in facts] == [False, True]
    assert facts[0].text.startswith(
        "lenet-300-100 at 95% (table1): 2.27 ± 0.10% (3 seeds), the paper 1.6%"
    )
    assert facts[1].text.endswith("from dense to pruned the paper has +0.70 points")
    assert holds(ONE_SHOT, table1=record_with("table1", lenets(0.0274, 0.0170))) == [False, False]
    assert holds(ONE_SHOT, table1=record_with("table1", lenets(0.0157, 0.0170))) == [True, True]
    # Of three seeds nobody can tell that nothing is lost; of sixty one can.
    assert holds(ONE_SHOT, table1=record_with("table1", lenets(0.0171, 0.0170))) == [None, True]
    many = record_with("table1", lenets(0.0171, 0.0170, seeds=20))
    assert holds(ONE_SHOT, table1=many) == [True, True]


def test_runs_that_two_experiments_share_are_told_once() -> None:
    """Table 1 and figure 1 have the same folders at 0 and 95%: the one with more seeds is told."""
    table, figure = (
        record_with(name, lenets(0.0171, 0.0170, seeds))
        for name, seeds in (("table1", 1), ("fig1", 2))
    )
    told = [fact.text.partition(": ")[0] for fact in facts_of(ONE_SHOT, table1=table, fig1=figure)]
    assert told == [f"lenet-300-100 at {share}% (fig1)" for share in (90, 95, 98)]
    fewer = record_with("fig1", lambda row: lenets(0.0171, 0.0170)(row)[:2])
    told = [fact.text.partition(": ")[0] for fact in facts_of(ONE_SHOT, table1=table, fig1=fewer)]
    assert "lenet-300-100 at 95% (table1)" in told
    assert "lenet-300-100 at 95% (fig1)" not in told


def test_a_row_that_one_experiment_has_not_run_is_told_by_the_other() -> None:
    table = record_with("table1", lenets(0.0171, 0.0170))
    nothing = record_with("fig1", lambda row: [])
    told = [fact.text for fact in ONE_SHOT.facts({"table1": table, "fig1": nothing})]
    assert not [text for text in told if text.startswith("lenet-300-100 at 95% (fig1)")]
    assert any(text.startswith("lenet-300-100 at 95% (table1): 1.71") for text in told)
    assert "lenet-300-100 at 90% (fig1): not run yet" in told


def test_what_is_missing_is_said() -> None:
    alone = record_with("table1", lenets(0.0172, None))
    facts = list(ONE_SHOT.facts({"table1": alone}))
    assert verdict(facts).startswith("open")
    assert all(
        "its dense network is not run yet" in fact.text
        for fact in facts
        if "lenet-300-100" in fact.text
    )
    assert [fact.text for fact in facts if "lenet-5" in fact.text] == [
        "lenet-5-caffe at 98% (table1): not run yet",
        "lenet-5-caffe at 99% (table1): not run yet",
    ]
    better = list(BETTER.facts({"table1": alone}))
    assert "dense network is not run yet" in better[0].text
    assert all(fact.missing for fact in [*facts, *better])
    one_seed = record_with("table1", lambda _: [0.02])
    assert set(holds(ONE_SHOT, table1=one_seed)) == {None}
    for claim in CLAIMS:
        assert verdict(list(claim.facts({}))) == "not run yet"


def test_architectures_by_hand() -> None:
    """The paper's AlexNet-s loses 0.87 points: ours may lose 1.15, 2% of 14% more than that."""

    def errors(row: Row) -> list[float]:
        if row.config.model == "alexnet-s":
            return around(0.14 if row.label == "dense" else 0.1492)
        if row.config.model == "lstm-s":  # the paper's gains: ours may lose 0.1 points
            return around(0.015 if row.label == "dense" else 0.0183)
        return []

    facts = list(ANY.facts({"table2": record_with("table2", errors)}))
    assert [fact.holds for fact in facts] == [True, False] + [None] * 10
    assert verdict(facts) == "holds in part (1 yes, 1 no, 10 not run yet)"
    dense = "dense 14.00 ± 0.10% (3 seeds), the paper 14.12% (agrees)"
    assert f"{dense}; from dense to pruned the paper has +0.87" in facts[0].text


@pytest.mark.parametrize(
    ("pruned", "expected"), [(0.0147, True), (0.0148, None), (0.0192, None), (0.0193, False)]
)
def test_where_the_paper_s_pruned_network_is_better(pruned: float, expected: bool | None) -> None:
    """At 95% (1.6 against 1.7), not at 98% (2.4). Chance explains 0.227 points."""
    facts = list(BETTER.facts({"table1": record_with("table1", lenets(pruned, 0.0170))}))
    assert [(fact.holds, fact.missing) for fact in facts] == [(expected, False), (None, True)]
    assert "at 95% (table1)" in facts[0].text
    assert facts[1].text == "lenet-5-caffe at 98% (table1): not run yet"
    assert (
        verdict(facts, some=True)
        == {
            True: "holds so far (1 yes, 1 not run yet)",
            None: "open (1 undecided, 1 not run yet)",
            False: "open (1 no, 1 not run yet)",
        }[expected]
    )


def test_a_dense_network_that_diverged_is_not_one_that_is_not_run() -> None:
    made = record_with("table1", lenets(0.0172, None))
    dense = next(row for row in made["rows"] if not row["config"]["sparsity"])
    dense["failed"] = [{"run": "r0", "seed": 0, "error": "nan", "diverged": True}]
    (fact, *_) = facts_of(ONE_SHOT, table1=made)
    assert fact.text.endswith("; its dense network diverged")
    assert (fact.holds, fact.missing) == (None, False)


def test_networks_that_are_not_trained_alike_are_told_and_decide_nothing() -> None:
    """LeNet-5-Caffe of table 1: pruned in 75,000 steps, dense in 10,800, as both of figure 1."""

    def errors(row: Row) -> list[float]:
        return around(0.02 if row.config.sparsity else 0.008)

    for claim in (ONE_SHOT, BETTER):
        records = {name: record_with(name, errors) for name in ("table1", "fig1")}
        facts = facts_of(claim, **records)
        apart = [fact for fact in facts if "lenet-5-caffe" in fact.text]
        assert apart
        assert all(fact.aside and fact.holds is None for fact in apart)
        assert "trained in another way (75,000 steps, the dense one 10,800)" in apart[0].text
        assert "(fig1, 10,800 steps)" in apart[-1].text
        whole = [fact for fact in facts if not fact.aside]
        assert verdict(facts, some=claim.some) == f"fails here ({len(whole)} no)"


def test_snip_is_held_against_each_rival_where_their_sparsities_are_nearest() -> None:
    """In the paper L-OBS has 2.0% at 98.5% and SNIP 2.4% at 98%: 0.4 points more are allowed."""
    errors = {"LWC": 0.016, "L-OBS": 0.02, "DNS": 0.015}

    def found(row: Row) -> list[float]:
        if row.config.model != "lenet-300-100":
            return []
        own = {0.95: 0.016, 0.98: 0.022}.get(row.config.sparsity, 0.0)
        return 4 * around(errors.get(row.label, own)) if row.label in {*errors, "SNIP"} else []

    told = {fact.text.split(": ")[1].split()[0]: fact for fact in facts_of(
        ON_PAR, table1=record_with("table1", found)) if not fact.missing}  # fmt: skip
    assert {name: fact.holds for name, fact in told.items()} == {
        "LWC": True, "L-OBS": True, "DNS": False,
    }  # fmt: skip
    assert "SNIP at 95% 1.60" in told["LWC"].text
    assert "SNIP at 98% 2.20" in told["DNS"].text


def test_a_row_of_which_every_seed_diverged_is_a_loss_and_no_row_that_is_not_run() -> None:
    made = record_with("table2", lambda row: around(0.02) if row.config.model == "lstm-s" else [])
    lost = next(row for row in made["rows"] if row["label"] == "pruned")
    lost["failed"] = [
        {"run": f"r{seed}", "seed": seed, "error": "nan", "diverged": True} for seed in range(3)
    ]
    facts = facts_of(ANY, table2=made)
    assert [fact.holds for fact in facts] == [None, None]  # alexnet-s has no dense runs beside it
    assert "alexnet-s at 90% (table2): 3 seeds diverged" in facts[0].text
    dense = next(row for row in made["rows"] if row["label"] == "dense")
    whole = next(row for row in made["rows"] if row["config"]["model"] == "lstm-s")
    dense["runs"], dense["selected"] = whole["runs"], whole["selected"]
    assert holds(ANY, table2=made) == [False, None]
