"""What the facts of a claim say together."""

from snip.experiments.claims.facts import Fact, verdict


def test_a_verdict_counts_what_is_open() -> None:
    yes, no, open_ = Fact("", True), Fact("", False), Fact("")
    missing = Fact("", missing=True)
    assert verdict([yes]) == "holds here (1 yes)"
    assert verdict([yes, open_, open_]) == "holds here (1 yes, 2 undecided)"
    assert verdict([yes, no, no, open_, missing]) == (
        "holds in part (1 yes, 2 no, 1 undecided, 1 not run yet)"
    )
    assert verdict([no, missing]) == "fails so far (1 no, 1 not run yet)"
    assert verdict([yes, missing]) == "holds so far (1 yes, 1 not run yet)"
    refuted = Fact("", False, missing=True)  # one fall of figure B is enough, whatever is not run
    assert verdict([refuted]) == "fails here (1 no)"
    assert verdict([open_]) == "open (1 undecided)"
    few = Fact("", few=True)
    assert verdict([open_, few, few]) == "open (1 undecided, 2 of too few seeds)"
    assert verdict([no, few], some=True) == "open (1 no, 1 of too few seeds)"
    decided = Fact("", False, few=True)  # a seed that diverges is enough
    assert verdict([decided]) == "fails here (1 no)"
    assert verdict([]) == "not run yet"


def test_what_only_stands_aside_decides_nothing() -> None:
    yes, trial = Fact("", True), Fact("", aside=True)
    assert verdict([yes, trial, trial]) == "holds here (1 yes)"
    assert verdict([trial]) == "open (nothing that could decide)"


def test_one_case_bears_out_that_there_are_some_and_none_refutes_it_before_all_are_known() -> None:
    yes, no, open_, missing = Fact("", True), Fact("", False), Fact(""), Fact("", missing=True)
    assert verdict([no, open_, missing], some=True) == ("open (1 no, 1 undecided, 1 not run yet)")
    assert verdict([no, no], some=True) == "fails here (2 no)"
    assert verdict([yes, no, open_], some=True) == "holds here (1 yes, 1 no, 1 undecided)"


def test_a_verdict_of_a_single_seed_says_so() -> None:
    yes, no = (Fact("", holds, alone=True) for holds in (True, False))
    assert verdict([yes]) == "holds in a single seed (1 yes)"
    assert verdict([no]) == "fails in a single seed (1 no)"
    assert verdict([yes, Fact("", True)]) == "holds here (2 yes)"
