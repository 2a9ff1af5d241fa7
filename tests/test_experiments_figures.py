"""Figures and tables from records, whole, partial and empty; curves of trainings."""

import json
import shutil
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from record_parts import record_of, record_with

from snip.experiments import EXPERIMENTS
from snip.experiments.measures.curves import MOST_POINTS, Curves
from snip.experiments.records.captions import what_was_run
from snip.experiments.records.drawing import logarithmic_errors, new_figure, save_figure
from snip.experiments.records.record import Known, make_record
from snip.experiments.records.tables import table_of, write_tables
from snip.experiments.table1 import SECONDS
from snip.runs import RunResult

DRAWN = [n for n, one in EXPERIMENTS.items() if one.draw and one.rows()]
PAPERS = {"fig1", "fig2", "fig3", "fig4", "figA1", "figA2", "figB"}


def test_every_figure_of_the_paper_is_drawn():
    drawn = {name for name, one in EXPERIMENTS.items() if one.draw}
    tables = {"table2", "tableC"}
    assert drawn == PAPERS | tables | {
        "methods",
        "granularity",
        "gap",
        "gap-conv",
        "gap-recurrent",
        "gap-sws",
        "layers",
    }


@pytest.mark.parametrize("name", DRAWN)
def test_figures_are_drawn_from_what_is_there(name, tmp_path):
    experiment = EXPERIMENTS[name]
    rows = experiment.rows()
    record = record_of(name, rows[: max(1, len(rows) // 2)])
    save_figure(experiment.draw(record), tmp_path / name)
    assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", ["fig1", "granularity"])
def test_errors_over_the_sparsity_have_alike_axes(name):
    record = record_of(name, EXPERIMENTS[name].rows())
    for axes in EXPERIMENTS[name].draw(record).axes:
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("sparsity, %", "test error, %")
        assert len(axes.get_legend().get_texts()) >= 2
        assert axes.get_title(loc="left")


def test_architectures_have_a_panel_each_with_dense_and_pruned_side_by_side():
    experiment = EXPERIMENTS["table2"]
    run = [row for row in experiment.rows() if row.config.model in ("alexnet-s", "lstm-s")]
    one, other, *rest = experiment.draw(record_of("table2", run)).axes
    assert not any(axes.axison for axes in rest)
    for axes, model, pruned in ((one, "alexnet-s", "90%"), (other, "lstm-s", "95%")):
        assert axes.get_title(loc="left") == model
        said = [text.get_text() for text in axes.get_legend().get_texts()]
        assert said == ["dense", f"pruned {pruned}"]
        # Two seeds each, and the error of guessing: a trial has no lines of the paper.
        assert len(axes.lines) == 5
    whole = record_with("table2", lambda row: [0.1] if row.config.model == "lstm-s" else [])
    (axes,) = experiment.draw(whole).axes
    heights = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert heights == [1.88, 1.57]


@pytest.mark.parametrize(("name", "guessing"), [("table2", 90), ("tableC", 99.5)])
def test_a_trial_is_held_against_the_error_of_guessing(name, guessing):
    experiment = EXPERIMENTS[name]
    figure = experiment.draw(record_of(name, experiment.rows()[:2]))
    (dotted,) = set(figure.axes[0].lines) - set(_curves(figure.axes[0]))
    assert dotted.get_ydata() == pytest.approx([guessing, guessing])
    assert "Dotted: the error of guessing." in figure.get_supxlabel().replace("\n", " ")
    whole = experiment.draw(record_with(name, lambda _: [0.1])).get_supxlabel()
    assert "Dotted: the paper's error at the end." in whole.replace("\n", " ")


@pytest.mark.parametrize(("least", "begins"), [(0.91, 90), (0.9, 0), (0.2, 0)])
def test_the_axes_of_a_trial_begin_where_its_errors_do(least, begins):
    record = record_with("tableC", lambda _: [0.97], scale=0.5)
    for row in record["rows"]:
        row["runs"][0]["curve"]["test_error"] = [0.99, 0.97]
    record["rows"][3]["runs"][0]["curve"]["test_error"] = [0.99, least]
    panels = [axes for axes in EXPERIMENTS["tableC"].draw(record).axes if axes.axison]
    assert [axes.get_ylim() for axes in panels] == [(begins, 100)] * 5


def test_the_title_says_which_networks_of_a_table_are_shown():
    def title(*models, **more):
        def errors(row):
            return [0.1] if not models or row.config.model in models else []

        return EXPERIMENTS["table2"].draw(record_with("table2", errors, **more)).get_suptitle()

    head = EXPERIMENTS["table2"].title
    assert title() == head
    assert title("gru-s", "lstm-s") == f"{head}\n2 of 12 networks: lstm-s, gru-s"
    most = {row.config.model for row in EXPERIMENTS["table2"].rows()} - {"gru-b", "vgg-c"}
    assert title(*most) == f"{head}\n10 of 12 networks: all but vgg-c, gru-b"
    trial = "A trial on 0.5 of the schedule; 1 of 12 networks: gru-s"
    assert title("gru-s", scale=0.5) == f"{head}\n{trial}"


@pytest.mark.parametrize("errors", [(65, 74), (0.7, 0.9), (1.2, 1.4), (1, 60), (10, 40)])
def test_values_can_be_read_off_a_logarithmic_axis_of_errors(errors: tuple[float, float]):
    axes = new_figure(4, 3).subplots()
    axes.plot([0, 1], errors)
    logarithmic_errors(axes)
    low, high = axes.get_ylim()
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert len([at for at in axes.get_yticks() if low <= at <= high]) >= 3
    assert len(set(labels)) == len(labels) <= 8


def test_records_of_before_curves_were_kept_are_shown_without_them():
    experiment = EXPERIMENTS["table2"]
    record = record_of("table2", experiment.rows()[:2])
    for row in record["rows"]:
        for run in row["runs"]:
            del run["curve"]
    assert not any(axes.axison for axes in experiment.draw(record).axes)
    assert table_of(experiment, record)[1]


def _curves(axes: Axes) -> list[Line2D]:
    """The lines of runs, of which the others are dotted."""
    return [line for line in axes.lines if line.get_linestyle() != ":"]


def test_a_row_has_its_colour_whatever_else_was_run():
    experiment = EXPERIMENTS["table2"]
    dense, pruned = experiment.rows()[:2]
    colours = [
        {line.get_color() for line in _curves(experiment.draw(record_of("table2", rows)).axes[0])}
        for rows in ([dense], [pruned], [dense, pruned])
    ]
    assert colours[0] | colours[1] == colours[2]
    assert len(colours[2]) == 2


def test_the_same_numbers_give_the_same_files(tmp_path):
    record = record_of("fig4", EXPERIMENTS["fig4"].rows())
    for name in ("one", "other"):
        save_figure(EXPERIMENTS["fig4"].draw(record), tmp_path / name)
    for kind in ("svg", "png"):
        one, other = (tmp_path / f"{name}.{kind}" for name in ("one", "other"))
        assert one.read_bytes() == other.read_bytes()


def test_a_figure_says_what_was_run(tmp_path):
    from matplotlib import rc_context

    record = record_of("fig1", EXPERIMENTS["fig1"].rows()[:3], seeds=1)
    with rc_context({"svg.fonttype": "none"}):
        save_figure(EXPERIMENTS["fig1"].draw(record), tmp_path / "fig1")
    said = (tmp_path / "fig1.svg").read_text()
    assert "Trained for 0.5 of the full schedule: 3 of 50 runs; 22 of 25 rows are not run" in said


@pytest.mark.parametrize("name", [*DRAWN, "table1", "table2", "table3", "tableC"])
def test_tables_of_all_rows_by_hand(name, tmp_path):
    experiment = EXPERIMENTS[name]
    record = record_of(name, experiment.rows(), seeds=1)
    heading, rows = table_of(experiment, record)
    assert len(rows) == len(record["rows"])
    assert {len(row) for row in rows} == {len(heading)}
    seeds = heading.index("seeds")
    assert {row[seeds] for row in rows} == {"1 of 2"}
    write_tables(experiment, record, tmp_path / name)
    lines = (tmp_path / f"{name}.md").read_text().splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(rows) + 2


def test_costs_needs_and_differences_in_tables():
    heading, rows = table_of(
        EXPERIMENTS["table1"], record_of("table1", EXPERIMENTS["table1"].rows())
    )
    lwc = next(row for row in rows if row[0] == "LWC")
    cells = dict(zip(heading, lwc, strict=True))
    assert (cells["steps"], cells[SECONDS], cells["pretraining"]) == (
        "15",
        "2",
        "yes",
    )
    assert (cells["prunings"], cells["architecture"]) == ("many", "yes")
    _, rows = table_of(EXPERIMENTS["table2"], record_of("table2", EXPERIMENTS["table2"].rows()))
    assert rows[1][-1] == "+0.10 (+0.87)"  # ours rises by 0.1 from row to row
    _, rows = table_of(EXPERIMENTS["gap"], record_of("gap", EXPERIMENTS["gap"].rows()))
    assert rows[0][-2:] == ["1.00 / 0.50", "-"]
    assert rows[1][-1] == "+0.10"  # two seeds do not know their own deviation
    errors = {"base": (0.010, 0.014, 0.010, 0.1), "decay 0": (0.012, 0.015, 0.0115)}
    given = record_with("gap", lambda row: errors.get(row.label, ()))
    _, rows = table_of(EXPERIMENTS["gap"], given)
    assert rows[1][-1] == "+0.15 (+5.2 s.e.)"  # 0.2, 0.1 and 0.15; the fourth seed has no pair


def test_a_record_that_was_only_scored_says_so():
    experiment = EXPERIMENTS["fig2"]
    record = make_record(experiment, [], Known(), scale=1, command="snip", more={})
    assert what_was_run(record) == "Scored, nothing was trained."
    measured = record | {"measured": {"seeds": 5}}
    assert what_was_run(measured) == "Scored with 5 seeds, nothing was trained."


def test_the_course_of_a_training_is_kept(finished_run: Path):
    result = RunResult.read(finished_run)
    curve = Curves(("train_loss",)).keep(result, None)["curve"]
    assert curve["iteration"] == [30, 60]
    assert curve["train_loss"] == [round(line.train_loss, 5) for line in result.history()]


@pytest.mark.parametrize("evaluations", [1, 150, 301, 302, 451])
def test_a_thinned_course_ends_where_the_training_ends(finished_run: Path, tmp_path, evaluations):
    shutil.copytree(finished_run, tmp_path / "long")
    (tmp_path / "long" / "sums.json").unlink()
    line = json.loads((finished_run / "metrics.jsonl").read_text().splitlines()[-1])
    lines = [json.dumps(line | {"iteration": i + 1}) for i in range(evaluations)]
    (tmp_path / "long" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    course = Curves(()).keep(RunResult.read(tmp_path / "long"), None)["curve"]["iteration"]
    assert course[-1] == evaluations
    assert len(set(course)) == len(course) <= MOST_POINTS + 1
