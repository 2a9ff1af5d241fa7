"""Protocols, seeds and scoring data of a run, and the configuration that names it."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from snip.common.errors import InputError
from snip.data import Dataset, load
from snip.models import build
from snip.runs import RunConfig, prepare, run, scoring_batches, seeds_of
from snip.scoring.settings import Scoring
from snip.training import TrainConfig, paper_schedule

SHORT = TrainConfig(iterations=100, lr_drops=(60,), eval_every=50)
CONFIG = RunConfig("lenet-300-100", 0.95, train=SHORT)


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist")


def test_protocols_share_masks_and_differ_in_the_trained_draw(mnist: Dataset) -> None:
    scored_model, scored_masks = prepare(CONFIG, mnist)
    redrawn_model, redrawn_masks = prepare(dataclasses.replace(CONFIG, protocol="redraw"), mnist)
    assert scored_masks == redrawn_masks
    protocols = scored_masks.provenance.protocol, redrawn_masks.provenance.protocol
    assert protocols == ("train-scored", "redraw")
    masks = scored_masks
    assert masks is not None
    scored, redrawn = scored_model.state_dict(), redrawn_model.state_dict()
    for name in ("fc1.weight", "fc2.weight", "fc3.weight"):
        kept = masks[name]
        assert not torch.equal(scored[name][kept], redrawn[name][kept])
        assert not redrawn[name][~kept].any()
    draw = build("lenet-300-100", seed=CONFIG.seed).state_dict()
    assert torch.equal(scored["fc1.weight"], draw["fc1.weight"] * masks["fc1.weight"])


def test_initializers_of_scored_and_trained_weights(mnist: Dataset) -> None:
    config = dataclasses.replace(
        CONFIG, protocol="redraw", initializer="rn", train_initializer="vs-x"
    )
    model, masks = prepare(config, mnist)
    assert masks is not None
    kept = model.get_parameter("fc1.weight")[masks["fc1.weight"]]
    assert float(kept.detach().std()) < 0.1  # vs-x, where rn has 1
    assert masks != prepare(dataclasses.replace(config, initializer="vs"), mnist)[1]
    with pytest.raises(InputError, match="use 'redraw'"):
        dataclasses.replace(CONFIG, train_initializer="vs-x")


def test_seeds_are_documented_and_distinct() -> None:
    seeds = seeds_of(dataclasses.replace(CONFIG, protocol="redraw", seed=3))
    assert seeds["run"] == seeds["scored_draw"] == seeds["training"] == 3
    assert len({seeds["scored_draw"], seeds["trained_draw"], seeds["scoring_batch"]}) == 3
    assert seeds_of(CONFIG)["trained_draw"] == seeds_of(CONFIG)["scored_draw"]


def test_scoring_batch_is_training_data_chosen_by_seed(mnist: Dataset) -> None:
    def images(config: RunConfig) -> torch.Tensor:
        return torch.cat([x for x, _ in scoring_batches(config, mnist)])

    config = dataclasses.replace(CONFIG, score_batch_size=20, score_batches=3)
    first = images(config)
    assert len(first) == 60
    assert torch.equal(first, images(config))
    assert not torch.equal(first, images(dataclasses.replace(config, seed=1)))
    train_part, _ = mnist.split_validation(0.1)
    known = {x.numpy().tobytes() for x in train_part.images}
    raw = (first * mnist.std.view(-1, 1, 1) + mnist.mean.view(-1, 1, 1)) * 255
    assert all(x.round().to(torch.uint8).numpy().tobytes() in known for x in raw)


def test_name_depends_on_what_differs_from_the_default() -> None:
    paper = RunConfig("lenet-300-100", 0.95)
    assert paper.dataset == "mnist"
    assert paper.training == paper_schedule("mnist")
    same = RunConfig("lenet-300-100", 0.95, dataset="mnist", train=TrainConfig(), initializer="vs")
    assert same == paper
    assert same.folder_name == paper.folder_name
    # Pinned: a field that is added later must not rename the runs of today, nor must "auto", which
    # took the place of "dense" as the default engine.
    assert paper.identity()["engine"] == "auto"
    dense = dataclasses.replace(paper, engine="dense")
    assert dense.identity().keys() == {
        "dataset", "initializer", "model", "score_batch_size", "sparsity", "train_initializer"
    }  # fmt: skip
    assert dense.folder_name == "lenet-300-100_mnist_snip-0.95_75000it_seed0_ce950196"
    names = {
        dataclasses.replace(paper, **change).folder_name
        for change in (
            {}, {"sparsity": 0.9}, {"seed": 1}, {"protocol": "redraw"}, {"scope": "erk"},
            {"reduction": "ema"}, {"score_batches": 2}, {"batch_norm": "train"}, {"floor": 1},
            {"train": TrainConfig(lr=0.05)}, {"dataset": "fashion-mnist"}, {"biases": "keep"},
        )
    }  # fmt: skip
    assert len(names) == 12


def test_dense_reference_is_one_run_whatever_the_scoring() -> None:
    dense = RunConfig("lenet-300-100", 0.0)
    for scoring in ({"scope": "erk", "score_batches": 7}, {"biases": "keep"}):
        assert dataclasses.replace(dense, **scoring).folder_name == dense.folder_name
    assert dataclasses.replace(dense, seed=1).folder_name != dense.folder_name


def test_configuration_survives_json() -> None:
    config = RunConfig(
        "vgg-like", 0.97, protocol="redraw", train_initializer="vs-h", seed=5,
        train=TrainConfig(batch_size=128, lr=1, lr_drops=(3,)),
    )  # fmt: skip
    assert config.dataset == "cifar-10"
    again = RunConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.folder_name == config.folder_name
    assert again.training.seed == 5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "lenet-300-10"}, "did you mean 'lenet-300-100'"),
        ({"model": ""}, "package.module:function"),
        ({"dataset": "mnits"}, "did you mean 'mnist'"),
        ({"sparsity": 95}, "write 0.95"),
        ({"sparsity": 1.0}, "sparsity"),
        ({"method": "snap"}, "did you mean 'snip'"),
        ({"protocol": "redrawn"}, "did you mean 'redraw'"),
        ({"initializer": "xavier"}, "unknown initializer"),
        ({"initializer": "own", "train_initializer": "own"}, "unknown train initializer"),
        ({"scope": "globl"}, "did you mean 'global'"),
        ({"reduction": "sum"}, "unknown reduction"),
        ({"biases": "kept"}, "did you mean 'keep'"),
        ({"batch_norm": "frozen"}, "unknown batch norm"),
        ({"score_batches": 0}, "at least 1"),
        ({"score_batch_size": -1}, "at least 1"),
        ({"floor": -1}, "floor"),
        ({"seed": -1}, "seed"),
        ({"train": TrainConfig(seed=7)}, "a run has one seed"),
        ({"train": {"lr": 0.1}}, "give a TrainConfig"),
    ],
)
def test_bad_configurations_are_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        dataclasses.replace(CONFIG, **change)


def test_network_for_another_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not defined for the data set 'mnist'"):
        run(RunConfig("vgg-d", 0.95, dataset="mnist", train=SHORT), tmp_path)


def test_a_network_of_the_paper_is_scored_the_authors_way_and_ones_own_by_default():
    paper, mine = RunConfig("lenet-300-100", 0.95), RunConfig("mine:build", 0.95)
    assert paper.scoring == Scoring.authors()
    assert mine.scoring == Scoring()
    assert (paper.floor, mine.floor) == (0, "auto")
    assert dataclasses.replace(mine, floor=0.01).floor == 0.01
    assert RunConfig("mine:build", 0.95, floor=0).floor == 0
    assert RunConfig.from_dict(mine.to_dict()) == mine
    assert dataclasses.replace(mine, batch_norm="eval").scoring.batch_norm == "eval"


def test_the_authors_way_does_not_rename_the_folders_of_old_runs():
    assert "batch_norm" not in RunConfig("lenet-300-100", 0.95).identity()
    assert RunConfig("mine:build", 0.95).identity()["batch_norm"] == "train"
    assert "floor" not in RunConfig("lenet-300-100", 0.95).identity()
    assert "floor" not in RunConfig("mine:build", 0.95, floor=0).identity()
    assert RunConfig("mine:build", 0.95).identity()["floor"] == "auto"
    assert RunConfig("lenet-300-100", 0.95, batch_norm="train").identity()["batch_norm"] == "train"


def test_the_name_of_a_run_shows_its_granularity() -> None:
    """A pruned run's alone: the dense reference is the same for every granularity."""
    blocks = RunConfig("lenet-300-100", 0.9, granularity="4x4")
    assert "_snip-0.9_4x4_75000it_" in blocks.folder_name
    dense = RunConfig("lenet-300-100", 0)
    assert dataclasses.replace(dense, granularity="4x4").folder_name == dense.folder_name


@pytest.mark.parametrize(
    "option", [{"score_batch_size": 7}, {"batch_norm": "train"}, {"floor": 3}, {"scope": "erk"}]
)
def test_options_that_a_method_which_trains_would_not_obey_are_refused(option) -> None:
    """They would only give the same run another name."""
    with pytest.raises(InputError, match=f"{next(iter(option))} is .* leave this option out"):
        RunConfig("lenet-300-100", 0.9, method="lwc", **option)
    config = RunConfig("lenet-300-100", 0.9, method="lwc", score_batch_size=100)
    assert RunConfig.from_dict(config.to_dict()) == config
