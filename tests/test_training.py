"""The training loop on real MNIST: metrics, selection, evaluation, and what stops it."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import (
    CONFIG,
    chancy_network,
    pruned_network,
    same_weights,
)

import snip
from snip.common.errors import InputError
from snip.data import Dataset, load
from snip.models import build
from snip.training import (
    DivergenceError,
    Metrics,
    TrainConfig,
    data_for,
    evaluate,
    train,
    train_step,
)
from snip.training.metrics import Running, selected
from snip.training.parts import stream


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(2000, 500)


def test_lenet_learns_mnist_and_stays_sparse() -> None:
    dataset = load("mnist").subset(10_000, 2000)
    model = build("lenet-300-100", seed=0)
    masks = snip.prune(model, next(iter(dataset.evaluation_batches(100))), sparsity=0.9)
    result = train(model, dataset, TrainConfig(iterations=180, lr_drops=(90,)))
    assert result.test_error < 0.12
    assert [line.iteration for line in result.history] == [90, 180]  # once per epoch
    assert [line.lr for line in result.history] == [0.1, pytest.approx(0.01)]
    assert all(line.sparsity == masks.sparsity for line in result.history)
    masks.check(model)


def test_metrics_are_one_json_object_per_line(mnist: Dataset, tmp_path: Path) -> None:
    seen: list[Metrics] = []
    result = train(pruned_network(mnist), mnist, CONFIG, folder=tmp_path, on_metrics=seen.append)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [Metrics(**line) for line in lines] == seen == list(result.history)
    assert [line["iteration"] for line in lines] == [20, 40, 60]
    assert lines[0]["epoch"] == pytest.approx(20 / 36)  # 1800 images in batches of 50
    assert all(line["images_per_second"] > 0 for line in lines)


def test_last_step_is_always_evaluated(mnist: Dataset) -> None:
    config = dataclasses.replace(CONFIG, iterations=30)
    result = train(chancy_network(), mnist, config)
    assert [line.iteration for line in result.history] == [20, 30]


def test_selected_weights_have_the_errors_that_are_reported(mnist: Dataset) -> None:
    model = chancy_network()
    # A rate that rises at the end makes the last model worse than an earlier one.
    config = dataclasses.replace(CONFIG, lr_drops=(40,), lr_factor=100.0)
    result = train(model, mnist, config)
    assert result.selected.iteration < result.final.iteration
    assert evaluate(model, mnist.evaluation_batches(500)).error == result.final.test_error
    model.load_state_dict(result.weights)
    data = data_for(mnist, config)
    assert data.valid is not None
    assert evaluate(model, data.valid).error == result.selected.valid_error
    assert evaluate(model, data.test).error == result.selected.test_error == result.test_error
    assert result.best_test_error == min(line.test_error for line in result.history)


def test_selection_breaks_ties_by_loss_then_by_time() -> None:
    def line(iteration: int, error: float | None, loss: float | None) -> Metrics:
        return Metrics(iteration, 0, 0.1, 0, 0, loss, error, 0, 0, 0, 0, 1)

    lines = [line(1, 0.3, 1.0), line(2, 0.2, 0.9), line(3, 0.2, 0.8), line(4, 0.2, 0.8)]
    assert selected(lines).iteration == 3
    assert selected([line(1, None, None), line(2, None, None)]).iteration == 2


def test_without_validation_the_last_model_counts(mnist: Dataset) -> None:
    model = chancy_network()
    result = train(model, mnist, dataclasses.replace(CONFIG, validation=0.0))
    assert result.selected is result.final
    assert result.selected.valid_error is None
    assert all(torch.equal(v, result.weights[n]) for n, v in model.state_dict().items())


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_other_optimisers_train_and_keep_zeros(mnist: Dataset, optimizer: str) -> None:
    model = pruned_network(mnist)
    result = train(model, mnist, CONFIG.with_optimizer(optimizer))
    assert result.test_error < 0.5
    assert result.final.sparsity == snip.held_masks(model).sparsity


def test_same_seed_same_bits_other_seed_others(mnist: Dataset) -> None:
    models = [chancy_network() for _ in range(3)]
    config = dataclasses.replace(CONFIG, iterations=20)
    torch.manual_seed(5)  # what the caller's generator holds must not matter
    train(models[0], mnist, config)
    torch.manual_seed(6)
    state = torch.get_rng_state()
    train(models[1], mnist, config)
    assert torch.equal(torch.get_rng_state(), state)  # nor is it touched
    train(models[2], mnist, dataclasses.replace(config, seed=1))
    assert same_weights(models[0], models[1])
    assert not same_weights(models[0], models[2])


def test_stream_starts_anywhere(mnist: Dataset) -> None:
    batches = data_for(mnist, CONFIG).train
    whole = [labels for _, labels in stream(batches, 0, 80)]
    part = [labels for _, labels in stream(batches, 37, 80)]
    assert len(whole) == 80
    assert all(torch.equal(a, b) for a, b in zip(whole[37:], part, strict=True))


def test_evaluate_restores_each_mode_and_leaves_statistics(mnist: Dataset) -> None:
    model = chancy_network()
    model.train()
    model[2].eval()  # a frozen norm in a model that trains
    before = model[2].running_mean.clone()
    evaluate(model, mnist.evaluation_batches(500))
    assert [module.training for module in model] == [True, True, False, True, True, True]
    assert torch.equal(model[2].running_mean, before)
    with pytest.raises(InputError, match="no images"):
        evaluate(model, [])


def test_evaluate_against_hand_count() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    batches = [(logits[:2], torch.tensor([0, 0])), (logits[2:], torch.tensor([0]))]
    found = evaluate(nn.Identity(), batches)
    right, wrong = math.log1p(math.exp(-2)), math.log1p(math.exp(2))
    assert found.error == pytest.approx(1 / 3)
    assert found.loss == pytest.approx((2 * right + wrong) / 3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_loss_that_is_no_number_stops_with_a_reason(
    mnist: Dataset, tmp_path: Path, bad: float
) -> None:
    model = chancy_network()
    calls = 0

    def step(*args: object) -> tuple[float, int]:
        nonlocal calls
        calls += 1
        if calls == 31:
            with torch.no_grad():
                model[1].weight.fill_(bad)
        return train_step(*args)  # type: ignore[arg-type]

    with pytest.raises(DivergenceError) as caught:
        train(model, mnist, CONFIG, folder=tmp_path, checkpoint_seconds=0, step=step)
    message = str(caught.value)
    assert "nan" in message
    assert "iteration 30" in message
    assert "lr 0.01" in message
    assert "smaller lr" in message
    assert f"{tmp_path / 'checkpoint.pt'}, at iteration 30" in message
    # The checkpoint is indeed good: the run goes on from it.
    assert train(chancy_network(), mnist, CONFIG, folder=tmp_path).final.iteration == 60


def test_a_rate_far_too_high_is_stopped(mnist: Dataset) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    with pytest.raises(DivergenceError, match=r"No checkpoint was kept"):
        train(model, mnist, dataclasses.replace(CONFIG, lr=1e12))


def test_model_without_trainable_parameters_is_refused(mnist: Dataset) -> None:
    model = chancy_network().requires_grad_(False)
    with pytest.raises(InputError, match="no parameter to train"):
        train(model, mnist, CONFIG)


def test_batch_larger_than_the_data_is_refused(mnist: Dataset) -> None:
    with pytest.raises(InputError, match=r"batch_size is 5000, but mnist has only 1800"):
        train(chancy_network(), mnist, dataclasses.replace(CONFIG, batch_size=5000))


def test_running_means_count_every_image() -> None:
    running = Running()
    running.add(2.0, 3, 10, 0.1)
    running.add(5.0, 0, 20, 0.1)
    assert running.mean_loss == pytest.approx(4.0)
    assert running.error == pytest.approx(0.1)
