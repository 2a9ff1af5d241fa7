"""Claims about initialisers, judged from records with numbers by hand."""

from claim_parts import BEST, MARGINAL, VARIANCE, holds
from record_parts import around, record_with

from snip.experiments.claims import verdict
from snip.experiments.kinds import Row


def test_variance_by_hand() -> None:
    """RN and TN must hurt the recurrent networks: alike, nobody can tell."""

    def errors(row: Row) -> list[float]:
        bad = row.label in ("RN", "TN") and row.config.model == "gru-s"
        return [0.4, 0.41, 0.42, 0.9] if bad else [0.018, 0.0181, 0.0182, 0.0183]

    found = {"table3": record_with("table3", errors)}
    assert {fact.text.partition(":")[0]: fact.holds for fact in VARIANCE.facts(found)} == {
        "lstm-s, RN": None, "lstm-s, TN": None, "gru-s, RN": True, "gru-s, TN": True,
    }  # fmt: skip


def test_scaled_draws_that_are_clearly_worse_refute_it() -> None:
    def errors(row: Row) -> list[float]:
        return [0.95, 0.96, 0.97, 0.98] if row.label == "VS-X" else [0.02, 0.021, 0.022, 0.023]

    assert set(holds(VARIANCE, table3=record_with("table3", errors))) == {False}


def test_the_lenets_by_hand() -> None:
    def errors(row: Row) -> list[float]:
        bad = row.label in ("RN", "TN") and row.config.model == "lenet-5-caffe"
        return [0.4, 0.41, 0.42, 0.9] if bad else [0.018, 0.0181, 0.0182, 0.0183]

    found = {"table3": record_with("table3", errors)}
    assert {fact.text.partition(":")[0]: fact.holds for fact in MARGINAL.facts(found)} == {
        "lenet-300-100, RN": True, "lenet-300-100, TN": True,
        "lenet-5-caffe, RN": False, "lenet-5-caffe, TN": False,
    }  # fmt: skip


def test_draws_that_are_not_run_are_said() -> None:
    def errors(row: Row) -> list[float]:
        known = row.config.model == "lenet-300-100" and row.label != "TN"
        return [0.02, 0.0201, 0.0202] if known else []

    found = {"table3": record_with("table3", errors)}
    assert verdict(list(MARGINAL.facts(found))) == "holds so far (1 yes, 3 not run yet)"
    assert {fact.text for fact in VARIANCE.facts(found)} == {
        f"{model}, {label}: not run yet" for model in ("lstm-s", "gru-s") for label in ("RN", "TN")
    }
    texts = [fact.text for fact in BEST.facts(found)]
    assert texts[0].endswith("; not all four are run yet")
    assert texts[1:] == [f"{model}: not run yet" for model in ("lenet-5-caffe", "lstm-s", "gru-s")]


def test_a_draw_that_is_much_better_is_no_marginal_difference() -> None:
    def errors(row: Row) -> list[float]:
        return around(0.005 if row.label in ("RN", "TN") else 0.018)

    assert set(holds(MARGINAL, table3=record_with("table3", errors))) == {False}


def test_the_best_initialiser_by_hand() -> None:
    lead = {"lenet-300-100": 0.01, "lenet-5-caffe": 0.03, "lstm-s": 0.0199}

    def errors(row: Row) -> list[float]:
        if row.label == "VS-H":
            return around(lead[row.config.model]) if row.config.model in lead else []
        return around(0.02)

    facts = list(BEST.facts({"table3": record_with("table3", errors)}))
    assert [fact.holds for fact in facts] == [True, False, None, None]
    assert "not all four are run yet" in facts[-1].text
