"""`snip reproduce` beside other commands, and in folders that others change."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from cli_fixtures import Snip

from snip.common.machine import code_digest, commit
from snip.experiments import EXPERIMENTS
from snip.experiments.kinds import scaled
from snip.experiments.records.record import Known, row_entry
from snip.experiments.records.results_file import read_record
from snip.experiments.records.tables import write_tables
from snip.experiments.sweep.estimate import show_estimate
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request
from snip.experiments.sweep.work import Place
from snip.runs import run

TRIAL = 0.0002  # 15 steps where the paper has 75,000
TABLE1 = EXPERIMENTS["table1"]
ROW = ("snip-0.95",)
RESULTS = Path(__file__).parents[1] / "results"  # as they are committed


def command(tmp_path: Path, **asked) -> Reproduction:
    request = Request(
        Place(tmp_path / "runs"), tmp_path / "results", scale=TRIAL, only=ROW, **asked
    )
    return Reproduction(TABLE1, request)


def row_of(record):
    (row,) = (row for row in record["rows"] if row["runs"])
    return row


def test_commands_with_other_seeds_and_times_lose_nothing_of_each_other(tmp_path):
    early = command(tmp_path, seeds=1)
    late = command(tmp_path, seeds=3)
    late.run()
    late.parts.note("timing", {"lenet-300-100": 1.0})
    late.finish()
    record = early.run()  # which has read the folder before all of that
    assert [run["seed"] for run in row_of(record)["runs"]] == [0, 1, 2]
    assert record == read_record(early.path, TABLE1)
    assert record["timing"] == {"lenet-300-100": 1.0}
    assert "timing" in record["made"]
    early.parts.note("timing", {"lenet-300-100": 2.0})
    assert early.finish()["timing"] == {"lenet-300-100": 2.0}  # its own, not the file's


def test_what_another_command_found_out_since_is_not_written_over(tmp_path):
    early, late = command(tmp_path, seeds=1), command(tmp_path, seeds=1)
    config = early.chosen[0].at(0)
    early.known.fail(config, "lost")
    early.update()
    third = command(tmp_path, seeds=1)  # which reads that the run was lost
    late.known.fail(config, "the loss is nan", diverged=True)
    late.update()
    third.update()
    (failed,) = (one for row in read_record(late.path, TABLE1)["rows"] for one in row["failed"])
    assert failed["diverged"] is True


def test_a_run_that_failed_here_and_was_finished_elsewhere_stays_finished(tmp_path):
    early, late = command(tmp_path, seeds=1), command(tmp_path / "other", seeds=1)
    late = Reproduction(late.experiment, replace(late.request, results=early.request.results))
    early.known.fail(early.chosen[0].at(0), "its worker was lost")
    early.update()
    late.run()
    record = early.update()
    row = row_of(record)
    assert [run["seed"] for run in row["runs"]] == [0]
    assert (row["failed"], record["failed"]) == ([], 0)


def test_runs_that_fit_no_row_stay_in_the_results(tmp_path, capsys):
    """As of a version whose rows were configured in another way."""
    command(tmp_path, seeds=2).run()
    path = command(tmp_path).path
    record = json.loads(path.read_text())
    row_of(record)["runs"][1]["run"] += "-of-another-version"
    path.write_text(json.dumps(record))
    shutil.rmtree(tmp_path / "runs")
    for seeds in (1, 2):  # the second time it finds them where the first has put them
        record = command(tmp_path, seeds=seeds, missing=True).run()
        assert "note: 1 run in " in capsys.readouterr().err
        (other,) = record["others"]
        assert other["run"].endswith("-of-another-version")
        assert len(row_of(record)["runs"]) == seeds
        assert record == read_record(path, TABLE1)


def test_seeds_that_are_asked_of_some_rows_are_not_asked_of_others(tmp_path):
    request = Request(Place(tmp_path / "runs"), tmp_path / "results", only=ROW, seeds=27)
    record = Reproduction(TABLE1, request).record()
    asked = {(row["label"], row["config"]["sparsity"]): row["asked"] for row in record["rows"]}
    assert asked["SNIP", 0.95] == 27
    assert asked["SNIP", 0.99] == 5
    assert asked["LWC", 0.917] == 3


def test_a_table_is_never_older_than_its_record(tmp_path, monkeypatch):
    """Another command that is at its end while this one writes must wait for the whole of it."""
    early, late = command(tmp_path, seeds=1), command(tmp_path, seeds=2)
    late.run()  # both runs are there; `early` knows of none of them
    other = Thread(target=late.finish)

    def slowly(*of_early: object) -> None:
        if not other.ident:
            other.start()
            other.join(0.3)
            assert other.is_alive()  # it waits
        write_tables(*of_early)

    monkeypatch.setattr("snip.experiments.records.record_file.write_tables", slowly)
    early.known.runs.clear()
    early.update()
    other.join()
    text = (tmp_path / "results" / "table1-scale-0.0002.md").read_text()
    assert f": {read_record(early.path, TABLE1)['done']} of " in text


def test_a_seed_that_diverged_is_not_forgotten_by_a_command_for_fewer(tmp_path):
    whole = command(tmp_path, seeds=3)
    known = Known()
    row = whole.chosen[0]
    known.fail(row.at(2), "the loss is nan.", diverged=True)
    for seeds in (3, 1):
        entry = row_entry(row, range(seeds), known, whole=False)
        assert [one["seed"] for one in entry["failed"]] == [2]
        assert entry["asked"] == max(seeds, 2)


def test_runs_that_experiments_share_are_estimated_once(tmp_path):
    left = []
    for name in ("table1", "fig1"):
        request = Request(Place(tmp_path), tmp_path, seeds=2, only=("lenet-300-100_mnist_dense",))
        work = Reproduction(EXPERIMENTS[name], request)
        work.pace.measured[("lenet-300-100", "mnist")] = 1.0
        left.append(show_estimate(work))
    assert len(left[0]) == 2
    assert left[0] == left[1]


def test_the_code_is_noted_before_the_work_begins(tmp_path):
    """The sources may be others by the time a run of hours ends."""
    commit.cache_clear()
    code_digest.cache_clear()
    command(tmp_path)
    assert commit.cache_info().currsize == code_digest.cache_info().currsize == 1


def test_every_run_says_of_which_code_it_is(tmp_path):
    work = command(tmp_path, seeds=2)
    commits = [run["commit"] for run in row_of(work.run())["runs"]]
    assert commits[0] == commits[1]
    source = f"commit {commits[0]}" if commits[0] else "an older or installed version"
    text = (tmp_path / "results" / "table1-scale-0.0002.md").read_text()
    assert f"Runs by the code that ended them: 2 of {source}" in text


def test_a_folder_with_another_run_under_this_name_is_told(tmp_path, capsys):
    config = next(row for row in TABLE1.rows() if "snip-0.95" in row.config.folder_name).config
    own, other = (scaled(replace(config, sparsity=s), TRIAL) for s in (0.95, 0.9))
    shutil.move(run(other, tmp_path / "runs", progress=False).folder, tmp_path / "runs" / "moved")
    shutil.move(tmp_path / "runs" / "moved", tmp_path / "runs" / own.folder_name)
    work = command(tmp_path, seeds=1)
    record = work.run()
    (row,) = (row for row in record["rows"] if row["failed"])
    assert not row["runs"]
    assert "holds another configuration (sparsity 0.9 there, 0.95 here)" in work.failures[0]
    capsys.readouterr()


@pytest.mark.usefixtures("empty_folder")
def test_maps_without_their_data_are_a_sentence(snip: Snip, tmp_path: Path) -> None:
    code, _, error = snip("reproduce", "figA1", "--data-dir", str(tmp_path))
    assert code == 1
    assert "nothing was run, see the warnings above" in error
    assert not Path("results/figA1.csv").exists()  # a table without a word in it


@pytest.mark.usefixtures("empty_folder")
def test_only_what_has_something_to_time_is_timed(snip: Snip) -> None:
    code, _, error = snip("reproduce", "all", "--time", "--seconds", "-1")
    assert code == 2
    assert "seconds is -1" in error


def test_tables_are_written_as_runs_finish(tmp_path):
    work = command(tmp_path, seeds=2)
    seen, take = [], work._take

    def watched(task, outcome):
        take(task, outcome)
        text = work.stem.with_name(f"{work.stem.name}.md").read_text()
        seen.append(text.partition("full schedule")[2].partition(": ")[2][0])

    work._take = watched
    work.run()
    assert seen == ["1", "2"]


def test_a_trial_has_no_marks_and_some_points(tmp_path):
    work = command(tmp_path, seeds=2)
    row = row_of(work.run())
    assert (row["paper"], row["selected"]["against"]) == ("1.6", None)
    text = work.stem.with_name(f"{work.stem.name}.md").read_text()
    assert "agrees with the paper" not in text
    folder = tmp_path / "runs" / row["runs"][0]["run"]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) >= 3


@pytest.mark.usefixtures("empty_folder")
def test_what_trains_nothing_says_so(snip: Snip) -> None:
    code, out, _ = snip("reproduce", "fig2", "--dry-run")
    assert code == 0
    assert "It scores networks and trains nothing: no runs. This is to be done." in out
    work = Reproduction(EXPERIMENTS["fig2"], Request(Place(Path("runs")), Path("results")))
    measured = json.loads((RESULTS / "fig2.json").read_text())["measured"]
    work.parts.note("measured", measured, seconds=65.0)
    work.update()
    _, out, _ = snip("reproduce", "fig2", "--dry-run")
    assert "This is done by this code. It took 1:05 before." in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--dry-run"], "no experiment was named"),
        (["table1", "--only", " "], "--only was given no text"),
        (["table1", "--scale", "2"], "scale is 2.0: it must be above 0 and at most 1"),
        (["table1", "--only", "nothing"], "Give one of these, or a part of the name"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_options_that_say_nothing(snip: Snip, flags: list[str], said: str) -> None:
    code, _, error = snip("reproduce", *flags)
    assert code == 2
    assert said in " ".join(error.split())
