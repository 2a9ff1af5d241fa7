"""The budget experiment: arms at equal FLOPs, found anew for every seed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_fixtures import Snip
from expected_warnings import expects

from snip.common.errors import FileError
from snip.data import load
from snip.experiments import EXPERIMENTS
from snip.experiments.budget_arms import ARMS, BASES, Arm, plan
from snip.experiments.records.record import Known, row_entry
from snip.runs import RunConfig, prepare
from snip.selection.costs import flops


@pytest.fixture(scope="module")
def mnist():
    return load("mnist")


@pytest.fixture(scope="module")
def runs(mnist):
    """The arms of one seed."""
    return plan(RunConfig("lenet-5-caffe", 0.95), mnist)


@pytest.mark.filterwarnings("ignore:nothing is left")
@expects("losses")
def test_both_budgets_have_the_same_flops(runs, mnist):
    left = {}
    for arm, config in runs.items():
        _, masks = prepare(config, mnist)
        uses = masks.provenance.uses
        dense = flops({name: torch.ones_like(mask) for name, mask in masks.items()}, uses)
        left[arm] = flops(masks, uses) / dense
    reference = left[Arm("connections", 1.0)]
    for arm in ARMS:
        assert left[arm] == pytest.approx(arm.share * reference, rel=0.01)
        assert left[arm] <= arm.share * reference


def test_the_reference_is_the_sparsity_asked_for(runs):
    assert list(runs) == list(ARMS)
    assert len(ARMS) == 6
    assert runs[Arm("connections", 1.0)] == RunConfig("lenet-5-caffe", 0.95)
    assert all(config.budget == arm.budget for arm, config in runs.items())


def test_a_plan_repeats_and_every_seed_has_its_own(runs, mnist):
    config = RunConfig("lenet-5-caffe", 0.95)
    assert plan(config, mnist) == runs
    assert plan(replace(config, seed=1), mnist) != runs


def test_every_arm_of_every_network_is_a_row():
    rows = EXPERIMENTS["budgets"].rows()
    assert len(rows) == len(ARMS) * len(BASES)
    (first,) = (row for row in rows[: len(ARMS)] if row.label == "connections 1")
    assert first.at(2) == replace(BASES[0], seed=2)
    other = rows[1].at(2)
    assert (other.budget, other.seed, other.training) == ("flops", 2, first.at(2).training)
    assert all(base.training.lr_drops[-1] < base.training.iterations for base in BASES)


@pytest.mark.usefixtures("empty_folder")
def test_the_command_without_the_other_networks_data(snip: Snip) -> None:
    code, out, error = snip(
        "reproduce", "budgets", "--seeds", "1", "--scale", "0.001", "--only", "connections 1",
        "--only", "flops 0.25",
    )  # fmt: skip
    assert code == 1
    assert "2 rows of budgets left out: cifar-10 is not in" in error
    record = json.loads(Path("results/budgets-scale-0.001.json").read_text())
    reference, starved = (row for row in record["rows"] if row["runs"])
    assert (reference["label"], starved["label"]) == ("connections 1", "flops 0.25")
    assert reference["runs"][0]["kept"] == 8622
    assert reference["runs"][0]["flops_left"] == pytest.approx(0.197, abs=1e-3)
    assert starved["runs"][0]["empty_layers"] == ["conv1.weight"]
    assert starved["runs"][0]["flops_left"] <= 0.25 * reference["runs"][0]["flops_left"]
    assert "19.70%" in out
    absent = [row for row in record["rows"] if row["config"]["model"] == "alexnet-s"]
    assert len(absent) == len(ARMS)
    assert {row["data"] for row in absent} == {"absent"}
    table = Path("results/budgets-scale-0.001.md").read_text()
    assert (
        table.count("| alexnet-s | 90 | - | - | 0 of 1 | - | - | - | - | cifar-10 is not here") == 6
    )


@pytest.mark.usefixtures("empty_folder")
def test_runs_of_a_network_whose_data_is_gone_stay_in_the_record(tmp_path: Path) -> None:
    row = next(row for row in EXPERIMENTS["budgets"].rows() if row.config.model == "alexnet-s")
    run = {"run": "alexnet-s_some", "seed": 0, "test_error": 0.2, "best_test_error": 0.1}
    config = row.config.to_dict()
    before = {"rows": [{"label": row.label, "config": config, "runs": [run]}]}
    known = Known.of_record(before)
    known.absent |= {"cifar-10"}
    entry = row_entry(row, range(3), known, whole=True)
    assert entry["runs"] == [run]
    assert (entry["selected"]["mean"], entry["asked"], entry["data"]) == (20.0, 3, "absent")
    other = replace(row, label="another")
    assert row_entry(other, range(3), known, whole=True)["runs"] == []


@pytest.mark.usefixtures("empty_folder")
def test_arms_look_for_data_where_the_command_says(tmp_path: Path) -> None:
    row = next(row for row in EXPERIMENTS["budgets"].rows() if row.config.model == "alexnet-s")
    place = tmp_path / "mine"
    place.mkdir()
    with pytest.raises(FileError, match=f"cifar-10 is not in {place}"):
        row.with_data(place).at(0)
