"""Ablations: what their rows change, what they are held against, and how they are drawn."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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


def panels_of(figure: Figure) -> list[Axes]:
    """All axes but that of the legend."""
    return [axes for axes in figure.axes if axes.axison]


def panels_with(errors: Mapping[str, Sequence[float]]) -> list[Axes]:
    """The panels of a drawing in which the changes of these names have these errors."""
    record = record_with("gap", lambda row: errors.get(row.label, ()))
    figure = EXPERIMENTS["gap"].draw(record)
    figure.draw_without_rendering()
    return panels_of(figure)


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
    stretched, usual = (axes.get_xlim() for axes in panels_of(one.draw(record)))
    assert stretched[0] < 1.0
    assert stretched[1] > 4.0
    assert usual == pytest.approx((0.8 * 2.4, 2 * 2.4))


def test_a_bar_that_goes_beyond_the_axis_ends_in_an_arrow_there():
    panel, _ = panels_with({"base": (0.016, 0.017), "decay 0": (0.018, 0.042)})
    arrows = {line.get_marker(): line.get_xdata() for line in panel.lines if not line.get_clip_on()}
    low, high = panel.get_xlim()  # 3.0 +- 1.7; the best checkpoints at half of that
    assert arrows == {"<": [pytest.approx(low)], ">": [pytest.approx(high)]}
    within, _ = panels_with({"base": (0.016, 0.017), "decay 0": (0.02, 0.021)})
    assert all(line.get_clip_on() for line in within.lines)


def test_means_off_the_scale_are_numbers_that_do_not_touch():
    all_rows = dict.fromkeys(("base", *VARIANTS), (0.016,))  # which makes each of them low
    for panel in panels_with(all_rows | {"scope layer": (0.24,)}):
        upper, lower = panel.texts
        assert [upper.get_text(), lower.get_text()] == ["24.0 \u2192", "12.0 \u2192"]
        assert upper.get_window_extent().y0 > lower.get_window_extent().y1


def test_a_row_without_points_says_why():
    def errors(row):
        return [0.02] if row.label == "base" or row.about["of"] == "lstm-s, 95%" else []

    record = record_with("gap-recurrent", errors)
    record["rows"][5]["failed"] = [{"seed": 0, "run": "one", "diverged": True}]
    full, *rest = panels_of(EXPERIMENTS["gap-recurrent"].draw(record))
    assert not full.texts
    assert [[text.get_text() for text in panel.texts] for panel in rest] == [
        ["failed", "not run", "not run"], ["not run"] * 3, ["not run"] * 3
    ]  # fmt: skip
    assert {text.get_position()[1] for text in rest[0].texts} == {1, 2, 3}


def test_changes_that_no_panel_shows_are_named_if_they_are_few():
    def below(name, *run):
        record = record_with(name, lambda row: [0.02] if row.label in run else [])
        return EXPERIMENTS[name].draw(record).get_supxlabel().replace("\n", " ")

    some = ("base", "ReLU after convolutions", "scoring batch 10,000")
    assert "Not run at all yet: nothing held out, rate 0.02." in below("gap-conv", *some)
    assert "Not run at all" not in below("gap-conv", "base", *VARIANTS_CONV)
    many = below("gap", "base")
    assert "Not run at all" not in many
    assert "of 62 rows are not run yet" in many


@pytest.mark.parametrize("name", ["gap", "gap-recurrent", "gap-sws"])
def test_the_legend_lies_on_nothing_else(name):
    figure = EXPERIMENTS[name].draw(record_with(name, lambda _: [0.02, 0.03]))
    figure.draw_without_rendering()
    (legend,) = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
    assert [text.get_text() for text in legend.get_texts()] == [
        "selected on validation", "best checkpoint"
    ]  # fmt: skip
    title, *others = figure.texts
    around = [title.get_window_extent(), *(text.get_window_extent() for text in others)]
    around += [panel.get_tightbbox() for panel in panels_of(figure)]
    assert not any(legend.get_window_extent().overlaps(box) for box in around)
