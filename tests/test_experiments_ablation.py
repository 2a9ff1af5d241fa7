"""Ablations: what their rows change, what they are held against, and how they are drawn."""

import json
from dataclasses import replace

import pytest
from record_parts import record_with

from snip.experiments import EXPERIMENTS
from snip.experiments.ablation import ablation
from snip.experiments.gap import VARIANTS, VARIANTS_CONV, VARIANTS_RECURRENT, VARIANTS_SWS
from snip.experiments.records.record import Known, make_record
from snip.experiments.records.results_file import read_record
from snip.experiments.records.summary import summary
from snip.experiments.records.tables import OF_ALL, table_of
from snip.runs import RunConfig
from snip.training import paper_schedule


@pytest.mark.parametrize(
    ("name", "bases", "variants", "seeds"),
    [
        ("gap", {"lenet-300-100": (0.95, 0.98)}, VARIANTS, 20),
        ("gap-conv", {"lenet-5-caffe": (0.98, 0.99)}, VARIANTS_CONV, 5),
        ("gap-recurrent", dict.fromkeys(("lstm-s", "lstm-b", "gru-s", "gru-b"), (0.95,)),
         VARIANTS_RECURRENT, 3),
        ("gap-sws", {"lenet-5-caffe": (0.995,)}, VARIANTS_SWS, 3),
    ],
)  # fmt: skip
def test_each_variant_of_the_gap_changes_one_thing(name, bases, variants, seeds):
    rows = EXPERIMENTS[name].rows()
    first = {row.about["of"]: row for row in rows if row.label == "base"}
    asked = [(model, sparsity) for model, at in bases.items() for sparsity in at]
    assert [(row.config.model, row.config.sparsity) for row in first.values()] == asked
    assert len(rows) == len(first) * (1 + len(variants))
    assert {row.seeds for row in first.values()} == {seeds}
    for row in rows:
        ours, theirs = row.config.identity(), first[row.about["of"]].config.identity()
        changed = {key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key)}
        longer = ("longer first phase", "2.5 times as long")
        changed -= {"train.lr_drops"} if row.label in longer else set()
        changed -= {"train.lr", "train.weight_decay"} if row.label == "adam" else set()
        expected = {"base": 0, "four together": 4}.get(row.label, 1)
        assert len(changed) == expected, row.label


def test_bases_are_of_the_paper_s_protocol_and_schedule_but_for_sws():
    for name in ("gap", "gap-conv", "gap-recurrent"):
        bases = [row.config for row in EXPERIMENTS[name].rows() if row.label == "base"]
        assert {base.protocol for base in bases} == {"redraw"}
        assert {base.training for base in bases} == {paper_schedule("mnist")}


def test_another_method_in_the_place_of_one_is_not_held_against_its_number():
    papers = {row.label: row.paper for row in EXPERIMENTS["gap-sws"].rows()}
    assert papers["base"] == papers["2.5 times as long"] == "1.0"
    assert papers["LC in its place"] == papers["SVD in its place"] == ""


def test_a_sparsity_says_what_biases_beside_it_make_of_it():
    """LSTM-s keeps 6,797 of its 135,936 weights and all 650 biases."""
    record = record_with("gap-recurrent", lambda row: [0.02] if row.label == "base" else [])
    heading, _ = table_of(EXPERIMENTS["gap-recurrent"], record)
    assert "of all %" in heading
    run = {"kept": 6_797, "total": 135_936}
    config = {"model": "lstm-s", "dataset": "mnist"}
    assert OF_ALL[1]({"config": config, "runs": [run]}, record) == "94.55"


def test_a_record_of_an_older_version_that_names_no_bases_is_read(tmp_path):
    record = record_with("gap-conv", lambda row: [0.02 if row.label == "base" else 0.01])
    rows = [row for row in record["rows"] if row["label"] != "rate 0.02"]  # a row that came later
    for row in rows:
        del row["of"]
    path = tmp_path / "gap-conv.json"
    path.write_text(json.dumps(record | {"rows": rows}))
    read = read_record(path, EXPERIMENTS["gap-conv"])
    heading, lines = table_of(EXPERIMENTS["gap-conv"], read)
    assert [line[heading.index("against the base, same seeds")] for line in lines] == [
        "-", "-1.00", "-1.00", "-1.00"
    ] * 2  # fmt: skip
    assert EXPERIMENTS["gap-conv"].draw(read)


def test_an_ablation_of_one_sparsity_is_drawn():
    base = RunConfig("lenet-300-100", 0.95), "1.6"
    one = ablation("one", [base], {}, base_seeds=1, notes=())
    asked = [(row, range(1)) for row in one.rows()]
    assert one.draw(make_record(one, asked, Known(), scale=1, command="snip", more={}))


def test_an_ablation_shows_its_base_and_whatever_is_lower():
    base, other = RunConfig("lenet-300-100", 0.95), RunConfig("lenet-300-100", 0.98)
    better = {"better": lambda config: replace(config, floor=0.01)}
    one = ablation("one", [(base, "1.6"), (other, "2.4")], better, base_seeds=1, notes=())
    asked = [(row, range(1)) for row in one.rows()]
    record = make_record(one, asked, Known(), scale=1, command="snip", more={})
    for row, error in zip(record["rows"], (4.0, 1.0), strict=False):
        row["selected"] = summary([error / 100], row["paper"])
    stretched, usual = (axes.get_xlim() for axes in one.draw(record).axes)
    assert stretched[0] < 1.0
    assert stretched[1] > 4.0
    assert usual == pytest.approx((0.8 * 2.4, 2 * 2.4))
