"""The budget experiment: arms at equal FLOPs, a record that resumes, times filled in later."""

import json
from dataclasses import replace

import pytest
import torch

from snip.data import load
from snip.engine.kernels.library import available
from snip.experiments.budget_arms import ARMS, SETTINGS, Arm, plan
from snip.experiments.budgets import main, show, summary
from snip.runs import RunConfig, prepare
from snip.selection.costs import flops

SHORT = ["--model", "lenet-5-caffe", "--iterations", "4"]


@pytest.fixture(scope="module")
def mnist():
    return load("mnist")


@pytest.fixture(scope="module")
def runs(mnist):
    """The arms of one seed."""
    return plan(RunConfig("lenet-5-caffe", 0.95), mnist)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The whole command on a schedule of a few steps; its folder and its flags."""
    folder = tmp_path_factory.mktemp("budgets")
    flags = [*SHORT, "--root", str(folder / "runs"), "--out", str(folder / "out.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SNIP_CACHE", str(folder / "cache"))
        with pytest.warns(UserWarning, match="nothing is left of 'conv1.weight'"):
            code = main([*flags, "--seeds", "0"])
    assert code == 0
    return folder, flags


def record_in(folder):
    return json.loads((folder / "out.json").read_text())


@pytest.mark.filterwarnings("ignore:nothing is left")
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


def test_settings_fit_their_networks():
    for model, setting in SETTINGS.items():
        config = RunConfig(model, setting.sparsity, train=setting.train)
        assert config.training.lr_drops[-1] < config.training.iterations


def test_a_summary_by_hand():
    rows = [
        {"test_error": 0.1, "flops_left": 0.5, "kept": 10},
        {"test_error": 0.3, "flops_left": 0.7, "kept": 20},
    ]
    found = summary(Arm("flops", 0.5), rows)
    assert found["test_error"] == pytest.approx(0.2)
    assert found["spread"] == pytest.approx(0.02**0.5)
    assert (found["flops_left"], found["kept"]) == (pytest.approx(0.6), 15)
    assert summary(Arm("flops", 0.5), rows[:1])["spread"] is None


def test_the_record(finished):
    record = record_in(finished[0])
    assert [arm["name"] for arm in record["arms"]] == [arm.name for arm in ARMS]
    for arm in record["arms"]:
        (row,) = arm["runs"]
        assert (row["seed"], row["total"]) == (0, 431_080)
        assert 0 < row["test_error"] <= 1
        assert arm["flops_left"] <= record["arms"][0]["flops_left"]
    assert record["arms"][0]["kept"] == 8622
    assert record["arms"][-1]["runs"][0]["empty_layers"] == ["conv1.weight"]
    assert record["run"]["train"]["iterations"] == 4
    assert record["timing"] is None
    assert {
        "command",
        "schedule",
        "seeds",
        "machine",
        "threads",
        "date",
        "versions",
    } <= record.keys()


def test_another_experiment_is_not_written_over(finished, capsys):
    folder, flags = finished
    before = (folder / "out.json").read_bytes()
    assert main([*flags, "--lr", "0.001"]) == 2
    assert "holds another experiment" in capsys.readouterr().err
    assert (folder / "out.json").read_bytes() == before


def test_timing_needs_a_result(tmp_path, capsys):
    assert main([*SHORT, "--time", "--out", str(tmp_path / "none.json")]) == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.skipif(not available(), reason="the native kernels are not built")
def test_times_are_filled_in_and_stay(finished, capsys, monkeypatch):
    folder, flags = finished
    monkeypatch.setenv("SNIP_CACHE", str(folder / "cache"))
    trained = record_in(folder)
    assert main([*flags, "--time", "--seconds", "0"]) == 0
    timed = record_in(folder)
    assert timed["timing"]["step_ms"].keys() == {"dense", *(arm.name for arm in ARMS)}
    assert timed | {"timing": None} == trained
    assert "dense" in capsys.readouterr().out
    results = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")}
    assert len(results) == len(ARMS)
    assert main([*flags, "--seeds", "0"]) == 0  # again: nothing is trained, the times stay
    assert {path: path.stat().st_mtime_ns for path in results} == results
    assert record_in(folder)["timing"] == timed["timing"]


def test_the_table(finished, capsys):
    record = record_in(finished[0]) | {"timing": None}
    show(record)
    lines = capsys.readouterr().out.splitlines()
    assert any("8,622" in line and "19.70%" in line for line in lines)
