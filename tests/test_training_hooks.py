"""What a method adds to the training loop: parameters, losses, other weights; all of it resumes."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_parts import CONFIG, StoppedError, chancy_network, repeatable, same_weights

from snip.common.errors import FileError
from snip.data import Dataset, Split, load
from snip.training import TrainConfig, evaluate, load_checkpoint, train
from snip.training.hooks import Hooks
from snip.training.metrics import read_metrics


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(1000, 300)


class Everything(Hooks):
    """Uses each part of the hooks: a parameter, a buffer, chance, a loss, other weights."""

    def __init__(self, model: nn.Module, stop_at: int = -1, kill_at: int = -1) -> None:
        super().__init__()
        self.weight = model.get_parameter
        self.stop_at, self.kill_at = stop_at, kill_at
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("kept", torch.ones(32, 784, dtype=torch.bool))
        self.rates: list[float] = []
        self.decays: list[tuple[float, ...]] = []

    def settings(self) -> dict[str, Any]:
        return {"everything": True}

    def groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.scale], "lr_scale": 0.5}]

    def rate(self, iteration: int) -> float:
        return 1.0 if iteration < 30 else 0.1

    def before_step(self, iteration: int) -> None:
        self.kept &= torch.rand(32, 784) < 0.99

    def weights_to_train(self) -> dict[str, torch.Tensor]:
        return {"1.weight": self.weight("1.weight").detach() * self.kept}

    weights_to_keep = weights_to_train

    def extra_loss(self, iteration: int) -> torch.Tensor:
        return (self.scale - self.weight("1.weight").norm()).square().sum() * 1e-3

    def after_step(self, iteration: int, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append(optimizer.param_groups[1]["lr"])
        self.decays.append(tuple(group["weight_decay"] for group in optimizer.param_groups))
        if iteration == self.stop_at:
            raise StoppedError
        if iteration == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def trained(mnist: Dataset, folder: Path | None, **options: Any) -> tuple[Any, nn.Module, Hooks]:
    model = chancy_network()
    hooks = Everything(model, **options)
    result = train(model, mnist, CONFIG, folder=folder, checkpoint_seconds=0, hooks=hooks)
    return result, model, hooks


def test_a_step_does_all_that_the_hooks_say(mnist: Dataset) -> None:
    result, model, hooks = trained(mnist, None)
    assert not torch.equal(hooks.scale, torch.ones(3))
    # The schedule's rate (with its drops at 20 and 40), the hooks' rate, and the group's own.
    assert hooks.rates[0] == pytest.approx(0.1 * 0.5)
    assert hooks.rates[25] == pytest.approx(0.01 * 0.5)
    assert hooks.rates[-1] == pytest.approx(0.001 * 0.1 * 0.5)
    assert set(hooks.decays) == {(5e-4, 0.0)}, "what the hooks train does not decay"
    weight = model.get_parameter("1.weight")
    assert weight[~hooks.kept].any(), "pruned weights are trained on"
    # Evaluations and the selected weights are of the network that the method would leave.
    assert (result.weights["1.weight"] == 0).float().mean() > 0.15  # 0.99^20 are kept at step 20
    stored = evaluate(model, mnist.evaluation_batches(250))
    with torch.no_grad():
        weight *= hooks.kept
    kept = evaluate(model, mnist.evaluation_batches(250))
    assert kept.loss == pytest.approx(result.final.test_loss)
    assert stored.loss != pytest.approx(result.final.test_loss)


@pytest.mark.parametrize("stop_at", [0, 33, 58])
def test_a_stopped_training_with_hooks_resumes_to_the_same_bits(
    mnist: Dataset, tmp_path: Path, stop_at: int
) -> None:
    whole, whole_model, whole_hooks = trained(mnist, None)
    with pytest.raises(StoppedError):
        trained(mnist, tmp_path, stop_at=stop_at)
    again, model, hooks = trained(mnist, tmp_path)
    assert repeatable(again.history) == repeatable(whole.history)
    assert same_weights(model, whole_model)
    assert same_weights(hooks, whole_hooks)


def test_what_a_method_remembers_belongs_to_its_checkpoint(mnist: Dataset, tmp_path: Path) -> None:
    trained(mnist, tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint.pt")["hooks"].keys() == {"scale", "kept"}
    with pytest.raises(FileError, match=r"another configuration.*everything True there"):
        train(chancy_network(), mnist, CONFIG, folder=tmp_path)
    model = chancy_network()
    other = Everything(model)
    other.kept = torch.ones(3, dtype=torch.bool)
    with pytest.raises(FileError, match="remembers is of another network"):
        train(model, mnist, CONFIG, folder=tmp_path, hooks=other)


def read(data: Path) -> Dataset:
    parts = torch.load(data, weights_only=True)
    return Dataset.from_splits("mnist", Split(*parts["train"]), Split(*parts["test"]), classes=10)


def work(data: Path, folder: Path, kill_at: int) -> None:
    """What each process does: train in `folder`, with a checkpoint after every single step."""
    torch.set_num_threads(1)
    _, model, hooks = trained(read(data), folder, kill_at=kill_at)
    torch.save([model.state_dict(), hooks.state_dict()], folder / "weights.pt")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL here")
def test_killed_twice_a_training_with_hooks_ends_with_the_same_bits(
    mnist: Dataset, tmp_path: Path
) -> None:
    data, folder = tmp_path / "mnist.pt", tmp_path / "run"
    splits = {"train": mnist.train, "test": mnist.test}
    torch.save({n: (s.images.clone(), s.labels.clone()) for n, s in splits.items()}, data)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["snip.training", "torch._dynamo", "pytest"])
    ends = []
    for kill_at in (12, 47, -1):
        process = context.Process(target=work, args=(data, folder, kill_at))
        process.start()
        process.join(timeout=120)
        ends.append(process.exitcode)
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    whole, model, hooks = trained(read(data), None)
    assert repeatable(read_metrics(folder / "metrics.jsonl")) == repeatable(whole.history)
    found = torch.load(folder / "weights.pt", weights_only=True)
    for states, owner in zip(found, (model, hooks), strict=True):
        assert all(torch.equal(value, states[name]) for name, value in owner.state_dict().items())


def test_without_hooks_a_checkpoint_of_an_older_version_goes_on(
    mnist: Dataset, tmp_path: Path
) -> None:
    config = TrainConfig(iterations=4, lr_drops=(), batch_size=50)
    train(chancy_network(), mnist, config, folder=tmp_path)
    path = tmp_path / "checkpoint.pt"
    content = torch.load(path, weights_only=True)
    del content["hooks"]
    torch.save(content, path)
    assert train(chancy_network(), mnist, config, folder=tmp_path).final.iteration == 4
