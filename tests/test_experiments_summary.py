"""Numbers over seeds by hand, and what an experiment's rows are."""

from dataclasses import replace

import pytest

from snip.common.errors import InputError
from snip.experiments import EXPERIMENTS, named_experiments
from snip.experiments.kinds import scaled
from snip.experiments.methods import METHODS_HERE
from snip.experiments.records.summary import AGREES, HIGHER, LEGEND, LOWER, ROUNDED, shown, summary
from snip.experiments.sweep.request import matching
from snip.experiments.table1 import RIVALS
from snip.runs import RunConfig
from snip.training import TrainConfig, paper_schedule, shortened

PLAIN = [name for name, one in EXPERIMENTS.items() if one.rows() and name != "budgets"]


@pytest.mark.parametrize(
    ("errors", "paper", "paper_std", "mean", "std", "against"),
    [
        ([0.016, 0.018], "1.6", 0.0, 1.7, 0.1414, AGREES),  # 0.1 away, 0.283 + 0.05 are allowed
        ([0.0193, 0.0195], "1.6", 0.0, 1.94, 0.0141, HIGHER),  # 0.34 away
        ([0.0164, 0.0166], "1.6", 0.0, 1.65, 0.0141, ROUNDED),  # 0.05 is the paper's rounding
        ([0.0164, 0.0166], "1.60", 0.0, 1.65, 0.0141, HIGHER),  # here it is 0.005
        ([0.0120, 0.0121], "1.60", 0.0, 1.205, 0.0071, LOWER),
        ([0.0120, 0.0121], "1.60", 0.2, 1.205, 0.0071, AGREES),  # by the paper's own deviation
        ([0.0160], "1.6", 0.0, 1.6, None, None),  # one seed says nothing
        ([0.2, 0.02], "1.6", 0.0, 11.0, 12.728, None),  # nor do seeds that are worlds apart
        ([0.0160, 0.0170], "", 0.0, 1.65, 0.0707, None),
    ],
)
def test_means_deviations_and_agreement(errors, paper, paper_std, mean, std, against):
    found = summary(errors, paper, paper_std)
    assert found["mean"] == pytest.approx(mean)
    assert found["std"] == (None if std is None else pytest.approx(std, abs=1e-4))
    assert found["against"] == against


def test_how_numbers_are_shown():
    assert shown(summary([0.016, 0.018], "1.6")) == "1.70 ± 0.14 ✓"
    assert shown(summary([0.0193, 0.0195], "1.6")) == "1.94 ± 0.01 ↑"
    assert shown(summary([0.0164, 0.0166], "1.6")) == "1.65 ± 0.01 (✓)"
    assert all(mark in LEGEND for mark in ("✓ ", "(✓) ", "↓ ", "↑ "))
    assert shown(summary([0.016])) == "1.60"
    assert shown(None) == "-"


def test_an_unknown_experiment_is_met_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'table1'"):
        named_experiments("tabel1")
    assert [one.name for one in named_experiments("all")] == list(EXPERIMENTS)
    assert len(EXPERIMENTS) == 19


@pytest.mark.parametrize("name", PLAIN)
def test_rows_are_different_runs_and_no_seed_shares_a_folder(name):
    rows = EXPERIMENTS[name].rows()
    names = [row.at(seed).folder_name for row in rows for seed in (0, 1)]
    assert len(set(names)) == len(names)
    for row in rows:
        assert row.paper == "" or float(row.paper) > 0
        assert row.config.training.lr_drops[-1] < row.config.training.iterations


def test_table_1_finds_runs_that_were_made_one_by_one():
    rows = {(row.label, row.config.model, row.config.sparsity): row for row in table1()}
    assert len(rows) == 20
    for method, label, (small, _), (conv, _) in RIVALS:
        plain = RunConfig(model="lenet-300-100", method=method, sparsity=small, seed=3)
        assert rows[label, "lenet-300-100", small].at(3).folder_name == plain.folder_name
        train = TrainConfig(lr=0.02, iterations=10800, lr_drops=(5400, 8100))
        slow = RunConfig(model="lenet-5-caffe", method=method, sparsity=conv, seed=3, train=train)
        assert rows[label, "lenet-5-caffe", conv].at(3) == slow
    snip = RunConfig("lenet-300-100", 0.95, protocol="redraw", seed=1)
    assert rows["SNIP", "lenet-300-100", 0.95].at(1) == snip
    assert snip.folder_name == "lenet-300-100_mnist_snip-0.95_redraw_75000it_seed1_f525ae5a"


def table1():
    return EXPERIMENTS["table1"].rows()


def test_table_1_has_the_papers_table_of_needs():
    needs = {row.label: row.about["needs"] for row in table1() if row.about}
    assert needs.keys() == {"SNIP", "LWC", "DNS", "LC", "SWS", "SVD", "OBD", "L-OBS"}
    assert not any(needs["SNIP"][name] for name in ("pretraining", "hyperparameters", "objective"))
    assert needs["SNIP"]["prunings"] == "1"
    assert all(needs[name]["pretraining"] for name in needs if name != "SNIP")
    assert [name for name in needs if needs[name]["objective"]] == ["LC", "SWS", "SVD"]


def test_methods_are_ten_at_five_sparsities_with_four_controls():
    rows = EXPERIMENTS["methods"].rows()
    assert len(METHODS_HERE) == 10
    assert len(rows) == 10 * 5 * 2 + 10 * 4
    train = shortened(paper_schedule("mnist"), 25_000)
    assert rows[0].config == RunConfig("lenet-300-100", 0.9, method="snip", train=train)
    redrawn = [row for row in rows if row.label == "snip, redraw"]
    assert [row.config.protocol for row in redrawn] == ["redraw"]


def test_scaling_a_run():
    config = RunConfig("lenet-300-100", 0.95)
    assert scaled(config, 1) is config
    short = scaled(config, 0.01).training
    assert (short.iterations, short.lr_drops) == (750, (250, 500))
    often = replace(config, train=TrainConfig(eval_every=1000))
    assert scaled(often, 0.01).training.eval_every == 10
    assert scaled(config, 1e-9).training.iterations == 1
    # Ten evaluations of 150 steps of CIFAR-10 would take three times as long as the steps.
    large = RunConfig("vgg-like", 0.97, dataset="cifar-10", protocol="redraw")
    assert scaled(large, 0.01).training.eval_every == 150
    assert scaled(large, 0.001).training.eval_every == 38  # four evaluations
    assert scaled(large, 0.0001).training.eval_every == 5  # three


def test_rows_are_chosen_by_the_name_of_a_network_as_its_user_wrote_it():
    rows = EXPERIMENTS["granularity"].rows()
    chosen = matching(rows, ["small_vgg"])
    assert {row.config.model.rpartition(":")[2] for row in chosen} == {"small_vgg"}


def test_no_row_is_chosen_by_the_digest_of_its_folder():
    rows = EXPERIMENTS["table2"].rows()
    assert any("99" in row.config.folder_name.rpartition("_")[2] for row in rows)
    assert matching(rows, ["99"]) == []
    assert {row.config.sparsity for row in matching(rows, ["snip-0.97"])} == {0.97}
