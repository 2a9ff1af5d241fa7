"""`snip reproduce --missing`: only what results do not hold, wherever it was done."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from cli_fixtures import Snip
from reproduce_fixtures import NAME, TABLE, TRIAL, changed, record

from snip.experiments import EXPERIMENTS
from snip.experiments.kinds import Row
from snip.experiments.sweep.reproduce import Reproduction
from snip.experiments.sweep.request import Request
from snip.experiments.sweep.work import Place
from snip.runs import RunConfig
from snip.runs.pace import Pace
from snip.training import TrainConfig


@pytest.mark.usefixtures("reproduced_copy")
def test_missing_runs_are_those_that_the_record_has_not(snip: Snip) -> None:
    before = record()["rows"]
    shutil.rmtree("runs")
    again = (*TABLE, "--seeds", "2", "--dry-run")
    assert "6 runs to do" in snip(*again)[1]
    assert "0 runs to do" in snip(*again, "--missing")[1]
    one_more = ("--only", "snip-0.95", "--seeds", "3", "--missing")
    assert snip("reproduce", "table1", *TRIAL, *one_more)[0] == 0
    (made,) = changed()
    assert "snip-0.95" in made.parent.name
    assert "seed2" in made.parent.name
    after = record()["rows"]
    assert [run["seed"] for run in after[2]["runs"]] == [0, 1, 2]
    assert after[2]["runs"][:2] == before[2]["runs"]


@pytest.mark.usefixtures("reproduced_copy")
def test_runs_that_another_experiment_has_are_not_missing(snip: Snip) -> None:
    fig1 = ("reproduce", "fig1", *TRIAL, "--only", "lenet-300-100", "--seeds", "2", "--dry-run")
    shutil.rmtree("runs")
    # Of table1's runs, two of the reference and two at 95% are rows of figure 1 too.
    assert "20 runs to do" in snip(*fig1, "--missing")[1]
    assert "24 runs to do" in snip(*fig1)[1]


@pytest.mark.usefixtures("reproduced_copy")
def test_what_was_written_since_the_command_began_is_not_missing() -> None:
    results = Path("results") / f"{NAME}.json"
    content = results.read_text()
    results.unlink()
    shutil.rmtree("runs")
    request = Request(
        Place(Path("runs")), Path("results"), seeds=2, scale=0.0002, only=("snip-0.95",),
        missing=True,
    )  # fmt: skip
    work = Reproduction(EXPERIMENTS["table1"], request)
    assert len(work.tasks()) == 2
    results.write_text(content)
    assert work.run()["done"] == 6
    assert not Path("runs").exists()


@pytest.mark.usefixtures("reproduced_copy")
def test_a_first_training_that_is_done_again_leaves_its_result_as_it_was(snip: Snip) -> None:
    before = record()["rows"][1]["runs"]
    assert before[0]["iterations"] == 2  # the reference of lenet-5-caffe, which LWC begins with
    shutil.rmtree("runs")
    code, _, _ = snip(
        "reproduce", "table1", *TRIAL, "--only", "lwc-0.917_2it", "--seeds", "1", "--missing"
    )
    assert code == 0
    assert len(changed()) == 2
    after = record()["rows"]
    assert after[1]["runs"] == before
    assert [row["label"] for row in after if row["runs"]][-1] == "LWC"


@pytest.mark.usefixtures("empty_folder")
def test_a_run_that_diverged_is_known_to_do_so_and_is_not_missing() -> None:
    diverging = TrainConfig(iterations=4, lr=1e30, validation=0)
    row = Row("diverging", RunConfig("lenet-300-100", 0.5, train=diverging))
    experiment = replace(EXPERIMENTS["fig1"], rows=lambda: [row])
    request = Request(Place(Path("runs")), Path("results"), seeds=1)
    assert Reproduction(experiment, request).run()["failed"] == 1
    # By the record alone: somebody else may have run it.
    shutil.rmtree("runs")
    assert Reproduction(experiment, replace(request, missing=True)).tasks() == []
    assert len(Reproduction(experiment, request).tasks()) == 1
    # Nor is it missing of another experiment that has the same row.
    other = replace(EXPERIMENTS["table3"], rows=lambda: [row])
    asked = replace(request, missing=True)
    assert Reproduction(other, asked, (experiment,)).tasks() == []
    assert len(Reproduction(other, asked).tasks()) == 1


def test_of_one_seed_the_longest_runs_come_first(tmp_path: Path) -> None:
    work = Reproduction(EXPERIMENTS["fig4"], Request(Place(tmp_path), tmp_path, seeds=2))
    work.pace = Pace(measured={("lenet-5-caffe", "mnist"): 1e-4})
    done = [(task.config.seed, task.config.sparsity) for task in work.tasks()]
    assert done == [(seed, s) for seed in (0, 1) for s in (0, 0, 0, 0.99, 0.99)]


def test_missing_is_refused_where_it_means_nothing(snip: Snip) -> None:
    code, _, error = snip("reproduce", "granularity", "--time", "--missing")
    assert code == 2
    assert "omit --missing" in error
