"""What the maps of figures 2, A1 and A2 say of the paper's claims, from measures by hand."""

import json
from pathlib import Path

from snip.experiments.claims import CLAIMS, verdict
from snip.experiments.fig2 import SETS, SPARSITIES, measured_table
from snip.experiments.kinds import Record
from snip.experiments.measures.map_measures import (
    BETWEEN_SEEDS,
    CHANGED,
    INVERSION,
    READ_BACK,
    READ_BACK_WRONG,
    WITH_SNIP,
    WITH_WRONG,
)

RESULTS = Path(__file__).parents[1] / "results"
SEEN, TASK, INVERTED, GRADIENT = CLAIMS[3:7]


def measured(
    method: str = "snip",
    kinds: tuple[str, ...] = ("plain",),
    steady: tuple[float, ...] = (0.88, 0.89),
    **measures: float,
) -> Record:
    """A record with the same measures in every line."""
    line = {"class read back by the mean": 0.6, **measures}
    lines = [{"kind": k, "sparsity": s, **line} for k in kinds for s in SPARSITIES]
    one = {"measures": lines, "steadiness": dict.fromkeys(kinds, steady)}
    return {"measured": {"method": method, "shown": list(kinds), **dict.fromkeys(SETS, one)}}


def holds(claim, **records: Record) -> list[bool | None]:
    return [fact.holds for fact in claim.facts(records)]


def test_reading_back_is_not_enough_for_the_task() -> None:
    """Wrong labels that leave the class as readable show that maps are of images, not of tasks."""
    same = measured(**{READ_BACK: 1.0, READ_BACK_WRONG: 1.0, WITH_WRONG: 0.98})
    assert holds(SEEN, fig2=same) == [True, True]
    assert holds(TASK, fig2=same) == [False, False]
    assert verdict(list(TASK.facts({"fig2": same}))) == "fails here (2 no)"
    fact = next(TASK.facts({"fig2": same}))
    assert "read back from 100% of the maps, and from 100% if every label is wrong" in fact.text
    other = measured(**{READ_BACK: 1.0, READ_BACK_WRONG: 0.5, WITH_WRONG: 0.5})
    assert holds(TASK, fig2=other) == [True, True]
    assert holds(SEEN, fig2=measured(**{READ_BACK: 0.8})) == [False, False]


def test_inversion_is_judged_by_what_another_seed_changes() -> None:
    same = {INVERSION: 0.98, BETWEEN_SEEDS: 0.95, CHANGED: 0}
    assert holds(INVERTED, figA1=measured(kinds=("inverted",), **same)) == [True, True]
    changed = measured(kinds=("inverted",), **same | {CHANGED: 1})  # 9 of 90, 4.5 are allowed
    assert holds(INVERTED, figA1=changed) == [False, False]
    assert "inversion changes 9 of 90 maps" in next(INVERTED.facts({"figA1": changed})).text


def test_the_gradient_alone_is_held_against_snip() -> None:
    snip = measured(**{INVERSION: 0.98, BETWEEN_SEEDS: 0.95, CHANGED: 1})
    kinds = ("plain", "inverted")
    like = {INVERSION: 0.99, BETWEEN_SEEDS: 0.97, CHANGED: 1, WITH_SNIP: 0.986}
    alike = measured("weight-gradient", kinds, **like)
    assert holds(GRADIENT, fig2=snip, figA2=alike) == 2 * [False, None, False]
    steadier = measured("weight-gradient", kinds, (0.92, 0.93), **like)
    assert holds(GRADIENT, fig2=snip, figA2=steadier) == 2 * [False, False, False]
    unlike = measured("weight-gradient", kinds, (0.8, 0.811), **like | {WITH_SNIP: 0.9, CHANGED: 2})
    assert holds(GRADIENT, fig2=snip, figA2=unlike) == 2 * [True, True, True]
    alone = list(GRADIENT.facts({"figA2": unlike}))
    assert {fact.holds for fact in alone} == {None}
    assert all("fig2) are not measured yet" in fact.text for fact in alone)


def test_a_record_of_an_older_version_decides_nothing_and_is_still_shown() -> None:
    old = {"sparsity": 0.9, "plain: class read back by the magnitude": 1.0}
    record = {"measured": {"shown": ["plain"], **{name: {"measures": [old]} for name in SETS}}}
    for claim in (SEEN, TASK, INVERTED, GRADIENT):
        facts = list(claim.facts({"fig2": record, "figA1": record, "figA2": record}))
        assert {fact.holds for fact in facts} == {None}
        assert all("was measured by an older version" in fact.text for fact in facts)
    assert measured_table(record["measured"])[1][0] == ["mnist", "90", "1.000"]


def test_the_committed_measures_are_judged() -> None:
    """Every claim on maps has an answer from what is committed, whichever it is."""
    records = {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in ("fig2", "figA1", "figA2")
    }
    for claim in (SEEN, TASK, INVERTED, GRADIENT):
        facts = list(claim.facts(records))
        assert facts
        assert all(fact.holds is not None for fact in facts)
