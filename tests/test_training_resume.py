"""A training that stops, however it does, goes on to the same bits or not at all."""

import dataclasses
import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import (
    CONFIG,
    StoppedError,
    chancy_network,
    pruned_network,
    repeatable,
    same_weights,
    stopping_at,
)

import snip
from snip.common.errors import FileError
from snip.data import Augmentation, Dataset, load
from snip.engine.kernels.library import available
from snip.training import (
    Metrics,
    evaluate,
    train,
    train_step,
)
from snip.training.journal import CHECKPOINT


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(2000, 500)


@pytest.mark.parametrize("stop_at", [1, 19, 37, 41, 60])
def test_stopped_run_resumes_to_the_same_bits(mnist: Dataset, tmp_path: Path, stop_at: int) -> None:
    whole_model, model = pruned_network(mnist), pruned_network(mnist)
    whole = train(whole_model, mnist, CONFIG)
    with pytest.raises(StoppedError):
        train(
            model, mnist, CONFIG, folder=tmp_path, checkpoint_seconds=0, step=stopping_at(stop_at)
        )
    fresh = pruned_network(mnist)
    resumed = train(fresh, mnist, CONFIG, folder=tmp_path)
    assert repeatable(resumed.history) == repeatable(whole.history)
    assert same_weights(fresh, whole_model)
    assert all(torch.equal(value, whole.weights[n]) for n, value in resumed.weights.items())


def test_a_finished_training_is_read_again_with_its_times(mnist: Dataset, tmp_path: Path) -> None:
    ended = train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path)
    again = train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path)
    assert again.steps_per_second == ended.steps_per_second
    assert again.history == ended.history


@pytest.mark.parametrize("factor", [0.0, 3.0])
def test_a_decay_that_changes_follows_the_drops_and_resumes_to_the_same_bits(
    mnist: Dataset, tmp_path: Path, factor: float
) -> None:
    config = dataclasses.replace(CONFIG, weight_decay=0.01, weight_decay_factor=factor)
    whole_model, fresh = pruned_network(mnist), pruned_network(mnist)
    decays: list[float] = []

    def noting(model: nn.Module, optimizer: torch.optim.Optimizer, *batch: torch.Tensor) -> tuple:
        decays.append(optimizer.param_groups[0]["weight_decay"])
        return train_step(model, optimizer, *batch)

    train(whole_model, mnist, config, step=noting)
    assert decays == pytest.approx([0.01] * 20 + [0.01 * factor] * 20 + [0.01 * factor**2] * 20)
    with pytest.raises(StoppedError):
        train(
            pruned_network(mnist), mnist, config,
            folder=tmp_path, checkpoint_seconds=0, step=stopping_at(30),
        )  # fmt: skip
    train(fresh, mnist, config, folder=tmp_path)
    assert same_weights(fresh, whole_model)
    other = dataclasses.replace(config, weight_decay_factor=1.0)
    with pytest.raises(FileError, match="weight_decay_factor"):
        train(pruned_network(mnist), mnist, other, folder=tmp_path)


@pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_decay_that_changes_is_the_same_on_the_sparse_engine(
    mnist: Dataset, optimizer: str
) -> None:
    config = CONFIG.with_optimizer(optimizer)
    config = dataclasses.replace(config, weight_decay=0.1, weight_decay_factor=0.0, lr=1e-3)
    images = next(iter(mnist.evaluation_batches(50)))
    trained = {}
    for engine, factor in (("dense", 0.0), ("sparse", 0.0), ("sparse", 1.0)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
        snip.prune(model, images, sparsity=0.9)
        asked = dataclasses.replace(config, weight_decay_factor=factor)
        train(model, mnist, asked, engine=engine)
        trained[engine, factor] = model[1].weight.detach().clone()
    torch.testing.assert_close(trained["sparse", 0.0], trained["dense", 0.0])
    assert not torch.allclose(trained["sparse", 1.0], trained["dense", 0.0], rtol=1e-3)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimisers_resume_to_the_same_bits(
    mnist: Dataset, tmp_path: Path, optimizer: str
) -> None:
    config = CONFIG.with_optimizer(optimizer)
    whole_model, fresh = chancy_network(), chancy_network()
    train(whole_model, mnist, config)
    with pytest.raises(StoppedError):
        train(
            chancy_network(), mnist, config,
            folder=tmp_path, checkpoint_seconds=0, step=stopping_at(30),
        )  # fmt: skip
    train(fresh, mnist, config, folder=tmp_path)
    assert same_weights(fresh, whole_model)


def test_augmented_run_resumes_to_the_same_bits(mnist: Dataset, tmp_path: Path) -> None:
    moving = dataclasses.replace(mnist, augment=Augmentation(flip=True, translate=4))
    whole_model, plain_model, fresh = (chancy_network() for _ in range(3))
    train(whole_model, moving, CONFIG)
    train(plain_model, moving, dataclasses.replace(CONFIG, augment=False))
    assert not same_weights(whole_model, plain_model)
    with pytest.raises(StoppedError):
        train(
            chancy_network(), moving, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, step=stopping_at(44),
        )  # fmt: skip
    train(fresh, moving, CONFIG, folder=tmp_path)
    assert same_weights(fresh, whole_model)


def test_resuming_with_other_threads_is_said(mnist: Dataset, tmp_path: Path) -> None:
    train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    torch.set_num_threads(2)
    with pytest.warns(snip.SnipWarning, match="began with 1 threads and goes on with 2") as caught:
        train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    assert caught[0].filename == __file__


def test_lines_later_than_the_checkpoint_are_cut(mnist: Dataset, tmp_path: Path) -> None:
    def stop_at_second_line(metrics: Metrics) -> None:
        if metrics.iteration == 40:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, on_metrics=stop_at_second_line,
        )  # fmt: skip
    path = tmp_path / "metrics.jsonl"
    assert len(path.read_text().splitlines()) == 2  # the second is later than the checkpoint
    with path.open("a") as file:
        file.write('{"iteration": 50, "epo')  # and a third was half-written
    result = train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [line.to_dict() for line in result.history]
    assert [line["iteration"] for line in lines] == [20, 40, 60]


def test_finished_run_returns_at_once_with_its_history(mnist: Dataset, tmp_path: Path) -> None:
    first = train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    model = chancy_network()
    again = train(model, mnist, CONFIG, folder=tmp_path, step=stopping_at(1))
    assert again.history == first.history
    assert again.selected == first.selected
    assert evaluate(model, mnist.evaluation_batches(500)).error == first.final.test_error


def test_resume_false_starts_over(mnist: Dataset, tmp_path: Path) -> None:
    train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    other = dataclasses.replace(CONFIG, lr=0.05)
    result = train(chancy_network(), mnist, other, folder=tmp_path, resume=False)
    assert len(result.history) == len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_time_is_counted_over_all_parts(mnist: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        train(
            chancy_network(), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, step=stopping_at(45),
        )  # fmt: skip
    result = train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    times = [line.seconds for line in result.history]
    assert times == sorted(times)
    assert result.seconds >= times[-1]


def test_masks_argument_is_applied_and_saved(mnist: Dataset, tmp_path: Path) -> None:
    masks = snip.held_masks(pruned_network(mnist))
    model = chancy_network()
    train(model, mnist, dataclasses.replace(CONFIG, iterations=5), folder=tmp_path, masks=masks)
    masks.check(model)
    assert snip.Masks.load(tmp_path / "masks.safetensors") == masks


def test_other_masks_in_the_folder_are_refused(mnist: Dataset, tmp_path: Path) -> None:
    train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path)
    other = chancy_network()
    snip.prune(other, next(iter(mnist.evaluation_batches(100))), sparsity=0.5)
    with pytest.raises(FileError, match="holds other masks"):
        train(other, mnist, CONFIG, folder=tmp_path)
    with pytest.raises(FileError, match="masks"):
        train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    unpruned = chancy_network()
    with pytest.raises(FileError, match="holds other masks"):
        train(unpruned, mnist, CONFIG, folder=tmp_path, masks=snip.held_masks(other))
    assert snip.held_masks(unpruned) is None


def test_cpu_seconds_leave_out_pauses_and_add_up_over_resumed_parts(
    mnist: Dataset, tmp_path: Path
) -> None:
    pause = 0.3

    def paused(metrics: Metrics) -> None:
        time.sleep(pause)

    with pytest.raises(StoppedError):
        train(
            pruned_network(mnist), mnist, CONFIG, folder=tmp_path, checkpoint_seconds=0,
            on_metrics=paused, step=stopping_at(30),
        )  # fmt: skip
    before = torch.load(tmp_path / CHECKPOINT, weights_only=True)["state"]["cpu_seconds"]
    result = train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path, on_metrics=paused)
    assert 0 < before < result.history[-1].cpu_seconds < result.cpu_seconds
    assert result.seconds > 3 * pause  # the pauses of three evaluations


def test_a_checkpoint_without_cpu_seconds_goes_on_without_them(
    mnist: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        train(
            pruned_network(mnist), mnist, CONFIG,
            folder=tmp_path, checkpoint_seconds=0, step=stopping_at(30),
        )  # fmt: skip
    content = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    del content["state"]["cpu_seconds"]
    for line in content["state"]["history"]:
        del line["cpu_seconds"]
    torch.save(content, tmp_path / CHECKPOINT)
    result = train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path)
    assert result.cpu_seconds is None
    assert result.seconds > 0
