"""The page beside the paper: whose numbers are shown, with what differs, and the command."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest
from page_parts import TRAIN

from snip.cli.configuration import run_config
from snip.cli.repeating import command_of
from snip.experiments.fig1 import FIG1
from snip.experiments.fig3 import FIG3
from snip.experiments.paper_numbers import paper_number
from snip.experiments.records.summary import ROUNDED, summary
from snip.experiments.table1 import SMALL, TABLE1
from snip.experiments.table2 import TABLE2, TABLEC
from snip.experiments.table3 import TABLE3
from snip.models import MODELS
from snip.page.comparison import rows
from snip.runs import RunConfig, RunResult
from snip.training import TrainConfig

pytestmark = pytest.mark.usefixtures("empty_folder")
NO_NUMBER = "the paper has no number for it"


def test_the_paper_s_numbers_are_those_of_the_experiments() -> None:
    for experiment in (TABLE1, TABLE2, TABLEC, FIG3, TABLE3):
        for row in experiment.rows():
            found = paper_number(row.at(7))
            assert found is not None
            assert (found.printed, found.experiment) == (row.paper, experiment.name)
            assert found.differs == {}
            if experiment in (TABLE1, TABLE2, TABLEC) and row.config.method == "snip":
                known = MODELS[row.config.model].sparsities[row.config.dataset]
                assert row.config.sparsity in (0, *known)
    assert paper_number(RunConfig("lenet-300-100", 0.98))[:2] == ("Table 1", "2.4")
    assert paper_number(RunConfig("wrn-22-8", 0))[:2] == ("Table 2", "6.14")
    assert paper_number(RunConfig("vgg-like", 0.95, "tiny-imagenet"))[:2] == ("Appendix C", "55.73")
    assert paper_number(RunConfig("lenet-300-100", 0.9, score_batch_size=10))[:2] == (
        "Figure 3", "1.72",
    )  # fmt: skip
    redrawn = RunConfig("gru-s", 0.9, initializer="rn", protocol="redraw")
    assert paper_number(redrawn)[:3] == ("Table 3", "47.61", 20.49)
    for nowhere in (
        RunConfig("lenet-300-100", 0.9, score_batch_size=50),
        RunConfig("gru-s", 0.9),
        RunConfig("lenet-300-100", 0.95, method="random"),
    ):
        assert paper_number(nowhere) is None


def test_figure_1_has_the_number_of_figure_3() -> None:
    (row,) = (r for r in FIG1.rows() if (r.config.model, r.config.sparsity) == (SMALL, 0.9))
    found = paper_number(row.config)
    assert (found.source, found.printed, found.differs) == ("Figure 3", row.paper, {})


@pytest.mark.parametrize("sparsity", [0, 0.95])
def test_random_labels_and_controls_have_no_number_of_the_paper(sparsity: float) -> None:
    assert paper_number(RunConfig("lenet-300-100", sparsity, labels="shuffled")) is None
    control = paper_number(RunConfig("lenet-300-100", sparsity, control="shuffle"))
    assert (control is None) is bool(sparsity)  # the dense network has no masks to shuffle


@pytest.mark.parametrize(
    ("fields", "differs"),
    [
        ({"engine": "dense", "seed": 3}, {}),
        ({"protocol": "train-scored"}, {"protocol": ("train-scored", "redraw")}),
        ({"scope": "erk"}, {"scope": ("erk", "global")}),
        ({"budget": "flops"}, {"budget": ("flops", "connections")}),
        ({"biases": "keep"}, {"biases": ("keep", "compete")}),
        ({"score_batch_size": 1000}, {"score_batch_size": (1000, 100)}),
        ({"initializer": "rn", "train_initializer": "vs"}, {"initializer": ("rn", "vs")}),
        ({"train": TrainConfig(lr=0.02)}, {"train.lr": (0.02, 0.1)}),
        (
            {"train": TrainConfig().with_optimizer("adam")},
            {
                "train.optimizer": ("adam", "sgd"), "train.lr": (0.001, 0.1),
                "train.weight_decay": (0.0, 0.0005),
            },
        ),
    ],
)  # fmt: skip
def test_another_experiment_has_the_paper_s_number_with_what_differs(fields, differs) -> None:
    config = RunConfig("lenet-300-100", **{"sparsity": 0.95, "protocol": "redraw"} | fields)
    assert paper_number(config).differs == differs


def keyed(results: list[RunResult]) -> dict[str, RunResult]:
    """Results by the keys that runs have on the page."""
    return {f"run-{i}": result for i, result in enumerate(results)}


def test_seeds_are_one_row_beside_the_paper(page_run: Path) -> None:
    result = RunResult.read(page_run)
    seeds = [
        dataclasses.replace(
            result, config=dataclasses.replace(result.config, seed=seed), test_error=error
        )
        for seed, error in ((0, 0.014), (1, 0.018), (2, 0.022))
    ]
    (row,) = rows(keyed(seeds))
    assert row.runs == ("run-0", "run-1", "run-2")
    assert (row.seeds, row.ours, row.paper, row.source) == (3, "1.80% ± 0.40", "1.60%", "Table 1")
    assert row.difference == "+0.20 points"  # another experiment is not judged
    scored, settings = row.notes
    assert scored.startswith("trains the scored draw")
    assert settings.startswith("other settings than snip reproduce table1: ")
    assert "iterations 40, there 75,000" in settings
    assert "lr drops 20, there 25,000 and 50,000" in settings
    control = dataclasses.replace(
        result, config=dataclasses.replace(result.config, control="shuffle")
    )
    assert len(rows(keyed([*seeds, control]))) == 2
    (alone,) = rows(keyed([control]))
    assert (alone.source, alone.paper) == (NO_NUMBER, "")
    assert alone.notes == ("40 iterations, usual are 75,000",)
    longer = dataclasses.replace(TrainConfig(), iterations=30_000, lr_drops=())
    rival = RunConfig("lenet-300-100", 0.5, method="lwc", train=longer)
    (other,) = rows(keyed([dataclasses.replace(result, config=rival)]))
    assert other.notes == ("30,000 iterations, usual are 27,000",)


def of_table_1(result: RunResult, errors: tuple[float, ...]) -> list[RunResult]:
    """Results of SVD's row of Table 1, a seed for each error."""
    config = RunConfig("lenet-300-100", 0.985, method="svd")
    return [
        dataclasses.replace(result, config=dataclasses.replace(config, seed=seed), test_error=error)
        for seed, error in enumerate(errors)
    ]


def test_the_page_and_the_tables_agree_on_what_agrees(page_run: Path) -> None:
    """1.77 ± 0.06 beside 1.9 is within the deviations only if 1.9 is 1.85."""
    result, errors = RunResult.read(page_run), (0.0170, 0.0177, 0.0182)
    assert summary(errors, "1.9")["against"] == ROUNDED
    (row,) = rows(keyed(of_table_1(result, errors)))
    assert row.difference == (
        "-0.14 points, within two standard deviations and the rounding of the paper's number"
    )
    (far,) = rows(keyed(of_table_1(result, (0.037, 0.038, 0.039))))
    assert far.difference == "+1.90 points, beyond two standard deviations"


def test_a_row_that_is_trained_in_another_way_has_no_mark(page_run: Path) -> None:
    (reference,) = (r for r in TABLE1.rows() if not r.marked and r.config.model == "lenet-5-caffe")
    result = dataclasses.replace(RunResult.read(page_run), config=reference.config)
    seeds = [
        dataclasses.replace(result, config=reference.at(seed), test_error=error)
        for seed, error in enumerate((0.0089, 0.0090, 0.0091))
    ]
    (row,) = rows(keyed(seeds))
    assert row.difference == "+0.00 points"
    assert "snip reproduce table1 trains it in another way than the paper" in row.notes


def test_a_copy_of_a_folder_is_no_second_seed(page_run: Path, page_copy: Path) -> None:
    (row,) = rows(keyed([RunResult.read(page_run), RunResult.read(page_copy)]))
    assert (row.seeds, row.runs) == (1, ("run-0", "run-1"))
    assert "±" not in row.ours
    one, other = of_table_1(RunResult.read(page_run), (0.018, 0.019))
    (row,) = rows(keyed([one, one, other]))
    assert (row.seeds, row.ours) == (2, "1.85% ± 0.07")


def test_random_labels_are_named_and_stand_alone(page_run: Path) -> None:
    result = RunResult.read(page_run)
    config = dataclasses.replace(result.config, labels="shuffled")
    (row,) = rows(keyed([dataclasses.replace(result, config=config)]))
    assert (row.pruned, row.source) == ("snip 95%, shuffled labels", NO_NUMBER)


# How a run is repeated.


@pytest.mark.parametrize(
    "config",
    [
        RunConfig("lenet-300-100", 0.95),
        RunConfig("lenet-300-100", 0, seed=3),
        RunConfig("lenet-5-caffe", 0.98, "fashion-mnist", protocol="redraw", train=TRAIN),
        RunConfig("vgg-d", 0.95, train=TrainConfig(lr_drops=(), iterations=7, augment=False)),
        RunConfig("lenet-300-100", 0.9, floor="auto", scope="layer", train_initializer=""),
        RunConfig("lenet-300-100", 0.9, protocol="redraw", initializer="rn"),
        RunConfig("lenet-300-100", 0.917, method="lwc"),
        RunConfig("lenet-300-100", 1 / 3, control="shuffle", engine="sparse"),
        RunConfig("lenet-300-100", 0.9, train=TrainConfig().with_optimizer("adamw")),
        RunConfig("my.nets:build", 0.9, batch_norm="eval", granularity="4x4"),
    ],
)
def test_the_command_gives_the_same_configuration(config: RunConfig) -> None:
    words = shlex.split(command_of(config, threads=1))
    assert words[:2] == ["snip", "run"]
    assert words[-2:] == ["--threads", "1"]
    asked = parsed(words[2:-2])
    assert run_config(asked) == config
    assert ("iterations" in asked) or not config.is_user_model


def parsed(words: list[str]) -> dict[str, object]:
    """The flags as typer hands them to `run_config`."""
    from snip.cli.options import KINDS, flag_rows

    names = {}
    for field, row in flag_rows().items():
        yes, _, no = row["names"][0].partition("/")
        names |= {yes: (field, row["kind"], True), no: (field, row["kind"], False)}
    asked: dict[str, object] = {}
    rest = iter(words)
    for word in rest:
        field, kind, yes = names[word]
        asked[field] = yes if kind == "bool" else KINDS[kind](next(rest))
    return asked
