"""What the maps of figures 2, A1 and A2 say of the paper's claims, from measures by hand."""

import json
from pathlib import Path

import torch
from claim_parts import GRADIENT, INVERTED, SEEN, TASK

import snip
from snip.data import load
from snip.experiments.claims import Claim
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
from snip.models import build

RESULTS = Path(__file__).parents[1] / "results"


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


def holds(claim: Claim, **records: Record) -> list[bool | None]:
    return [fact.holds for fact in claim.facts(records)]


def test_reading_back_is_not_enough_for_the_task() -> None:
    """Maps of one class cannot show the task, however they come out: what is found is told."""
    same = measured(**{READ_BACK: 1.0, READ_BACK_WRONG: 1.0, WITH_WRONG: 0.98})
    assert holds(SEEN, fig2=same) == [True, True]
    assert holds(SEEN, fig2=measured(**{READ_BACK: 0.8})) == [False, False]
    for maps in (same, measured(**{READ_BACK: 1.0, READ_BACK_WRONG: 0.5, WITH_WRONG: 0.5})):
        facts = list(TASK.facts({"fig2": maps}))
        assert [(fact.holds, fact.aside) for fact in facts] == 2 * [(None, True)]
    fact = next(TASK.facts({"fig2": same}))
    assert "read back from 100% of the maps, and from 100% if every label is wrong" in fact.text


def test_inverted_images_are_plain_ones_with_the_sign_turned_and_decide_nothing() -> None:
    like = {READ_BACK: 1.0, INVERSION: 0.98, BETWEEN_SEEDS: 0.95, CHANGED: 1}
    inverted = measured(kinds=("inverted",), **like)
    for claim in (INVERTED, SEEN):
        facts = list(claim.facts({"figA1": inverted}))
        assert [(fact.holds, fact.aside) for fact in facts] == 2 * [(None, True)]
    assert "inversion changes 9 of 90 maps" in next(INVERTED.facts({"figA1": inverted})).text
    data = load("mnist").subset(100, 100)
    seen = [next(iter(one.evaluation_batches(100)))[0] for one in (data, data.inverted())]
    assert torch.allclose(seen[0], -seen[1], atol=1e-5)
    model, labels = build("lenet-300-100"), data.test.labels
    scores = [snip.connection_sensitivity(model, (seen[0], labels))]
    first = next(iter(scores[0]))
    with torch.no_grad():
        model.get_parameter(first).neg_()  # as likely a draw as the other
    scores.append(snip.connection_sensitivity(model, (seen[1], labels)))
    assert all(torch.allclose(scores[0][name], scores[1][name], atol=1e-6) for name in scores[0])


def test_the_gradient_alone_is_held_against_snip() -> None:
    snip = measured(**{INVERSION: 0.98, BETWEEN_SEEDS: 0.95, CHANGED: 1})
    kinds = ("plain", "inverted")
    like = {INVERSION: 0.99, BETWEEN_SEEDS: 0.97, CHANGED: 1, WITH_SNIP: 0.986}
    alike = measured("weight-gradient", kinds, **like)
    assert holds(GRADIENT, fig2=snip, figA2=alike) == 2 * [False, None, None]
    steadier = measured("weight-gradient", kinds, (0.92, 0.93), **like)
    assert holds(GRADIENT, fig2=snip, figA2=steadier) == 2 * [False, False, None]
    unlike = measured("weight-gradient", kinds, (0.8, 0.811), **like | {WITH_SNIP: 0.9, CHANGED: 2})
    assert holds(GRADIENT, fig2=snip, figA2=unlike) == 2 * [True, True, None]
    alone = list(GRADIENT.facts({"figA2": unlike, "fig2": {"rows": []}}))
    assert {fact.holds for fact in alone} == {None}
    assert all("fig2 is not measured yet" in fact.text for fact in alone)


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
        assert all(fact.aside or fact.holds is not None for fact in facts)
