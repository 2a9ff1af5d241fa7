"""The pages that show results: as committed, empty, and filled."""

import json
import shutil
from pathlib import Path

import pytest
from record_parts import around, record_of, record_with

from snip.common.errors import FileError, InputError
from snip.experiments import EXPERIMENTS
from snip.experiments.claims import CLAIMS
from snip.experiments.gallery.gallery_page import COMMAND
from snip.experiments.gallery.marked import END, MARK, filled
from snip.experiments.gallery.pages import GALLERY, METHODS, REPRODUCED, pages
from snip.experiments.methods import METHODS_HERE
from snip.experiments.records.results_file import read_record
from snip.methods.controls import CONTROLS

TOP = Path(__file__).parents[1]


def test_the_committed_pages_are_what_the_results_say():
    """If this fails, results came or changed: run the command and commit what it writes."""
    for path, text in pages(TOP / "results", TOP / "docs").items():
        assert path.read_text(encoding="utf-8") == text, f"run {COMMAND}"


def test_experiments_that_share_a_row_have_the_same_runs_of_it():
    """If this fails: `snip reproduce NAME --missing` takes over what another one has."""
    seen = {}
    for name, experiment in EXPERIMENTS.items():
        path = TOP / "results" / f"{name}.json"
        for row in read_record(path, experiment)["rows"] if path.is_file() else ():
            runs = {run["run"] for run in row["runs"]}
            place = json.dumps(row["config"], sort_keys=True)
            other, theirs = seen.setdefault(place, (name, runs))
            # Budgets has rows of one configuration, whose sparsities it finds out for each network.
            assert other == name or theirs == runs, (name, other, row["label"])


@pytest.fixture
def docs(tmp_path):
    shutil.copytree(TOP / "docs", tmp_path / "docs")
    (tmp_path / "results").mkdir()
    return tmp_path / "docs"


def written(docs, **records):
    results = docs.parent / "results"
    for name, record in records.items():
        (results / f"{name.replace('_', '-')}.json").write_text(json.dumps(record))
    made = pages(results, docs)
    return made[docs / GALLERY], made[docs / METHODS]


def test_without_results_everything_is_not_run_yet(docs):
    gallery, methods = written(docs)
    for name, experiment in EXPERIMENTS.items():
        assert f"| `{name}` | {experiment.title} | not run yet |" in gallery
        assert f"\n## {name}\n" not in gallery
    assert gallery.count("**not run yet**") == len(CLAIMS)
    assert methods.count("not run yet: `snip reproduce ") == 5


def test_a_section_has_command_seeds_scale_date_and_figure(docs):
    record = record_of("fig4", EXPERIMENTS["fig4"].rows()[:2])
    (docs.parent / "results" / "fig4-scale-0.5.png").write_bytes(b"")
    gallery, _ = written(docs, **{"fig4_scale_0.5": record})
    section = gallery.partition("\n## fig4-scale-0.5\n")[2]
    assert "`snip reproduce fig4 --scale 0.5` (the last one was `snip reproduce fig4`)" in section
    assert "`snip reproduce fig4 --scale 0.5 --missing` does what is not here yet" in section
    assert "Seeds 0-1; 2026-11-17." in section
    assert "](../results/fig4-scale-0.5.png)](../results/fig4-scale-0.5.svg)" in section
    assert "| reference, true labels | lenet-5-caffe | 0 | 1.05 ± 0.07 |" in section
    assert "0.02 (the paper's is 0.1)): 4 of 10 runs; 3 of 5 rows are not" in section
    title = EXPERIMENTS["fig4"].title
    line = f"| [`fig4-scale-0.5`](#fig4-scale-05) | {title} | 4 of 10 | 2 | 0.5 of the full |"
    assert line in gallery


def test_runs_that_came_to_nothing_are_shown(docs):
    record = record_of("fig4", EXPERIMENTS["fig4"].rows()[1:])
    lost = {"run": "x", "seed": 0, "error": "the loss is nan", "diverged": True}
    record["rows"][0]["failed"], record["failed"] = [lost], 1
    gallery, _ = written(docs, **{"fig4_scale_0.5": record})
    said = "- decides nothing: training error at the end (fig4): reference, true labels: diverged"
    assert f"{said}; " in gallery
    assert "; a trial on 0.5 of the schedule." in gallery
    assert "\n## fig4-scale-0.5\n" in gallery


def test_the_readme_s_table_has_both_networks_side_by_side():
    record = record_with("table1", lambda row: around(0.02) if row.label != "LWC" else [])
    text = filled("<!-- results: table1 -->", {"table1": record}, [], TOP / "results")
    assert "| dense | - | 2.00 ± 0.10 ↑ | 1.7 | 3 | - | 2.00 ± 0.10 | 0.9 | 3 |" in text
    assert "| SNIP | 95 | 2.00 ± 0.10 ↑ | 1.6 | 3 | 98 | 2.00 ± 0.10 ↑ | 0.8 | 3 |" in text
    assert "| LWC | 91.7 | - | 1.6 | 0 | 91.7 | - | 0.8 | 0 |" in text
    assert "not run yet: `snip reproduce table1`" in filled("<!-- results: table1 -->", {}, [], TOP)


def test_the_readme_s_errors_over_the_sparsity():
    def errors(row):
        return around(0.02) if row.config.sparsity != 0.5 else []

    record = record_with("fig1", errors)
    text = filled("<!-- results: fig1 -->", {"fig1": record}, [], TOP / "results")
    assert "| error % (seeds) at | dense | 10% | 20% |" in text
    assert "| 98% | 99% |" in text
    line = next(line for line in text.splitlines() if line.startswith("| lenet-300-100 |"))
    assert line.count("| 2.00 (3) ") == 11
    assert "| - (0) |" in line
    assert "not run yet: `snip reproduce fig1`" in filled("<!-- results: fig1 -->", {}, [], TOP)


def test_what_only_diverged_is_not_said_to_be_missing(docs):
    """Else the page names a command that does nothing."""
    record = record_of("fig4", EXPERIMENTS["fig4"].rows(), seeds=1)
    lost = {"run": "x", "seed": 1, "error": "the loss is nan", "diverged": True}
    for row in record["rows"]:
        row["failed"] = [lost]
    gallery, _ = written(docs, **{"fig4_scale_0.5": record})
    assert "--missing` does what is not here yet" not in gallery


@pytest.mark.parametrize("name", ["table1", "table2", "tableC", "table3"])
def test_trials_decide_no_claim(docs, name):
    """Networks that have learnt nothing lose nothing either."""
    trial = record_with(name, lambda _: around(0.9), scale=0.001)
    gallery, _ = written(docs, **{f"{name}_scale_0.001": trial})
    short = gallery.partition("## In short")[2].partition("## What was run")[0]
    assert not any(word in short for word in ("holds", "fails", "cannot be shown"))
    assert "; a trial on 0.001 of the schedule." in gallery


def test_trials_stand_beside_what_was_run_in_full(docs):
    def lstm(row):
        return [0.01, 0.0101, 0.0102] if row.config.model == "lstm-s" else []

    trial = record_with("table2", lambda _: around(0.5), scale=0.01)
    records = {"table2": record_with("table2", lstm), "table2_scale_0.01": trial}
    gallery, _ = written(docs, **records)
    claim = gallery.partition("### It works on any architecture")[2].partition("###")[0]
    assert "holds so far (1 yes, 16 not run yet)" in claim
    assert "- alexnet-s at 90% (table2): not run yet." in claim
    assert "- decides nothing: alexnet-s at 90% (table2): 50.00 ± 0.10% (3 seeds)" in claim


def test_rows_with_other_seeds_are_not_told_as_if_they_had_the_same(docs):
    record = record_of("fig4", EXPERIMENTS["fig4"].rows()[:2], seeds=1)
    record["rows"][1]["runs"][0]["seed"] = 7
    gallery, _ = written(docs, **{"fig4_scale_0.5": record})
    assert "Seeds 0, 7 (1 per row); 2026-11-17." in gallery


def test_the_date_of_what_was_measured_is_when_it_was_measured(docs):
    record = read_record(TOP / "results" / "fig2.json", EXPERIMENTS["fig2"])
    day = record["made"]["measured"]["date"][:10]
    gallery, _ = written(docs, fig2=record | {"date": "2099-01-01T00:00:00+00:00"})
    section = gallery.partition("\n## fig2\n")[2].partition("\n## ")[0]
    assert day in section
    assert "2099" not in section


def test_an_unknown_mark_is_refused(docs):
    with pytest.raises(InputError, match=r"unknown mark for results 'tabel'.*table"):
        filled("<!-- results: tabel -->", {}, [], docs)


def test_a_damaged_result_is_refused_by_name(docs):
    with pytest.raises(FileError, match=r"fig1\.json is of experiment fig3"):
        written(docs, fig1=record_of("fig3", []))


def test_marks_are_filled_and_filled_again(docs):
    methods, granularity = (
        record_of(name, EXPERIMENTS[name].rows()) | {"scale": 1.0}
        for name in ("methods", "granularity")
    )
    (docs.parent / "results" / "methods.png").write_bytes(b"")
    _, first = written(docs, methods=methods, granularity=granularity)
    assert first.count(END) == len(MARK.findall(first))
    assert "| lenet-300-100 | 90% | 95% | 98% | 99% | 99.5% |" in first
    assert "| `snip` | 1.05 ± 0.07 |" in first
    assert f"| lenet-300-100 at 98% | the method | {' | '.join(CONTROLS)} |" in first
    controls = first.partition("<!-- results: controls -->")[2]
    assert all(f"| `{name}` |" in controls for name in METHODS_HERE)
    assert "[![Ten methods at initialisation, MNIST](../results/methods.png)]" in first
    assert "| channel 90% |" in first
    (docs / METHODS).write_text(first)
    assert written(docs)[1] == first
    claims = (docs / REPRODUCED).read_text().partition("<!-- results: claims -->")[2]
    assert claims.count("](gallery.md#") >= len(CLAIMS)
    bare = "before\n<!-- results: figure -->\nafter\n"
    text = filled(bare, {}, [], docs.parent / "results")
    assert text.startswith("before\n<!-- results: figure -->\nThe figure")
    assert text.endswith(f"{END}\nafter\n")
