"""What tables and figures say of the runs that they are of, and what they must not hide."""

import csv
from pathlib import Path

from record_parts import record_with

from snip.experiments import EXPERIMENTS
from snip.experiments.gallery.marked import filled
from snip.experiments.records.captions import captions, what_was_run
from snip.experiments.records.tables import table_of, write_tables


def test_the_length_of_trainings_is_told_beside_the_paper_s():
    def said(name: str) -> str:
        return what_was_run(record_with(name, lambda _: [0.5])).partition(":")[0]

    assert said("fig3") == "Trained for the full schedule"
    assert said("fig1") == (
        "Trained for all 75,000 steps (lenet-300-100); 10,800 steps (lenet-5-caffe; the full "
        "schedule has 75,000), not all at the paper's rate"
    )
    assert said("gap") == (
        "Trained for 75,000 or 250,000 steps (lenet-300-100; the full schedule has 75,000), "
        "not all at the paper's rate"
    )
    assert said("gap-sws").endswith(" before methods that prune a trained network, and train on")
    assert said("table1").startswith("Trained for all 75,000 steps (lenet-300-100); ")
    assert "; 27,000 steps (lenet-300-100; the full schedule has 75,000); " in said("table1")
    assert said("table2") == "Trained for the full schedule"
    assert said("table3") == "Trained for the full schedule"  # Adam, as there
    assert "1,350 steps (small_vgg)" in said("granularity")  # which is no network of the paper's
    for name in ("fig4", "figB"):
        assert said(name) == (
            "Trained for all 75,000 steps (lenet-5-caffe), all at the rate 0.02 "
            "(the paper's is 0.1)"
        )


def test_machines_are_told_with_their_runs_where_they_are_several():
    made = record_with("fig4", lambda _: [0.5, 0.6])
    assert "Machine: a processor, 2 cores." in captions(made)
    for row in made["rows"]:
        row["runs"][1]["machine"] = {"cpu": "another", "cores": None}
    told = "Machines: a processor, 2 cores (5 runs); another (5 runs)."
    assert told in captions(made)


def test_a_trial_says_that_its_notes_are_of_the_full_schedule():
    told = "Lengths in the notes are of the full schedule."
    assert told in captions(record_with("table2", lambda _: [0.5], scale=0.01))
    assert told not in captions(record_with("table2", lambda _: [0.5]))


def test_the_line_of_the_base_is_of_the_seeds_that_its_changes_have():
    """Here all changes have the base's errors on their three seeds: they are on its line."""
    record = record_with(
        "gap", lambda row: [0.03] * 3 + ([0.02] * 17 if row.label == "base" else [])
    )
    axes = EXPERIMENTS["gap"].draw(record).axes[1]
    upright = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    places = {round(float(x[0]), 6) for x in upright}
    assert 3.0 in places
    assert 2.15 not in places


def test_of_a_single_seed_no_spread_is_drawn():
    record = record_with("fig1", lambda _: [0.02])
    band = EXPERIMENTS["fig1"].draw(record).axes[0].collections[0]
    assert not [path for path in band.get_paths() if len(path.vertices)]


def test_csv_has_how_rows_stand_to_the_paper(tmp_path):
    record = record_with("table3", lambda _: [0.019, 0.0191, 0.0192])
    write_tables(EXPERIMENTS["table3"], record, tmp_path / "table3")
    lines = csv.DictReader((tmp_path / "table3.csv").read_text().splitlines())
    found = {(line["model"], line["label"]): line for line in lines}
    assert found["lenet-300-100", "RN"]["selected_against"] == "agrees"
    assert found["lenet-5-caffe", "RN"]["selected_against"] == "higher"
    assert found["gru-s", "RN"]["paper_std"] == "20.49"
    dense = record_with("table2", lambda _: [0.1])
    write_tables(EXPERIMENTS["table2"], dense, tmp_path / "table2")
    (first, *_) = csv.DictReader((tmp_path / "table2.csv").read_text().splitlines())
    assert (first["label"], first["method"]) == ("dense", "dense")


def test_a_table_is_complete_with_the_seeds_of_its_own_not_of_a_command():
    record = record_with("table1", lambda _: [0.02, 0.02])  # asked for two seeds
    heading, rows = table_of(EXPERIMENTS["table1"], record)
    seeds = {(row[0], row[1]): row[heading.index("seeds")] for row in rows}
    assert seeds["reference", "lenet-300-100"] == seeds["SNIP", "lenet-300-100"] == "2 of 20"
    assert seeds["SNIP", "lenet-5-caffe"] == "2 of 5"
    assert seeds["LWC", "lenet-300-100"] == "2 of 3"
    trial = record_with("table1", lambda _: [0.02, 0.02], scale=0.5)
    assert {row["asked"] for row in trial["rows"]} == {2}


def test_seeds_that_diverged_are_told_in_the_table_of_methods():
    record = record_with("methods", lambda row: [] if row.label == "grasp" else [0.01, 0.011])
    gone = {"run": "x", "seed": 2, "error": "the loss is nan", "diverged": True}
    for row in record["rows"]:
        if row["label"] in ("grasp", "force"):
            row["failed"] = [gone]
    text = filled("<!-- results: table -->", {"methods": record}, [], Path("results"))
    (grasp, *_), (force, *_) = (
        [line for line in text.splitlines() if f"`{name}`" in line] for name in ("grasp", "force")
    )
    assert grasp.count(" 1 of 1 diverged ") == 5  # sparsities
    assert "| 1.05 ± 0.07 (1 of 3 diverged) |" in force
