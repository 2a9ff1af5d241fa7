"""Learning-compression (LC) against steps made by hand, and its constraint in a training."""

from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import StoppedError, network, same_weights, weights_of

from snip.data import Dataset, load
from snip.methods.lc import STEPS, LearningCompression, compressed
from snip.training import TrainConfig, load_checkpoint, train


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(1000, 200)


def test_lc_compression_keeps_the_largest_values() -> None:
    weights = {"a": torch.tensor([3.0, -1.0]), "b": torch.tensor([[2.0, -4.0]])}
    found = compressed(weights, 2)
    assert found["a"].tolist() == [3.0, 0.0]
    assert found["b"].tolist() == [[0.0, -4.0]]


def test_lc_steps_by_hand() -> None:
    """The C step compresses w - lambda / mu, lambda falls by mu (w - theta), momentum is reset."""
    weight = nn.Parameter(torch.tensor([3.0, 1.0, 2.0]))
    config = TrainConfig(lr=0.02, iterations=STEPS + 1, lr_drops=())
    steps = LearningCompression({"w": weight}, 1, config)
    assert steps.theta.tolist() == [3.0, 0.0, 0.0]
    steps.multipliers.copy_(torch.tensor([0.5, 0.0, -0.1]))
    assert steps.mu(1) == pytest.approx(0.2)
    optimizer = torch.optim.SGD([weight], lr=0.0, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    steps.after_step(0, optimizer)  # the first L step is twice as long
    assert steps.theta.tolist() == [3.0, 0.0, 0.0]
    steps.after_step(1, optimizer)
    assert steps.theta.tolist() == pytest.approx([0.0, 0.0, 2.5])
    assert steps.multipliers.tolist() == pytest.approx([0.5 - 0.6, -0.2, -0.1 + 0.1], abs=1e-6)
    assert not optimizer.state[weight]["momentum_buffer"].any()


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_after_a_c_step_adam_goes_on_like_a_fresh_one(kind: type[torch.optim.Adam]) -> None:
    """Its bias correction too: moments of zero under an old count make steps of several rates."""
    weight = nn.Parameter(torch.tensor([3.0, 1.0, 2.0]))
    config = TrainConfig(lr=0.01, iterations=2 * (STEPS + 1), lr_drops=(), optimizer="adam")
    steps = LearningCompression({"w": weight}, 1, config)
    used = kind([weight], lr=0.01)
    for iteration in range(2 * steps.length):
        weight.grad = torch.tensor([1.0, -2.0, 0.5])
        used.step()
        steps.after_step(iteration, used)
    twin = nn.Parameter(weight.detach().clone())
    fresh = kind([twin], lr=0.01)
    for gradient in ([2.0, 1.0, -1.0], [0.3, -3.0, 1.0]):
        weight.grad, twin.grad = torch.tensor(gradient), torch.tensor(gradient)
        used.step()
        fresh.step()
        assert torch.equal(weight, twin)


def test_lc_under_adam_resumes_right_after_a_c_step(mnist: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(
        lr=0.001, weight_decay=0, iterations=2 * (STEPS + 1), lr_drops=(), batch_size=50,
        eval_every=1000, optimizer="adam",
    )  # fmt: skip

    class Stopping(LearningCompression):
        def rate(self, iteration: int) -> float:
            if iteration == 2 * self.length:  # the optimiser's count was just reset
                raise StoppedError
            return super().rate(iteration)

    def trained(kind: type[LearningCompression], folder: Path | None) -> nn.Module:
        model = network()
        hooks = kind(weights_of(model), 300, config)
        train(model, mnist, config, folder=folder, hooks=hooks, checkpoint_seconds=0)
        return model

    with pytest.raises(StoppedError):
        trained(Stopping, tmp_path)
    state = load_checkpoint(tmp_path / "checkpoint.pt")["optimizer"]["state"]
    assert [float(part["step"]) for part in state.values()] == [0.0] * len(state)
    assert same_weights(trained(LearningCompression, tmp_path), trained(LearningCompression, None))


def test_lc_meets_the_constraint_with_exactly_kappa_weights(mnist: Dataset) -> None:
    model = network()
    weights, gaps = weights_of(model), []
    config = TrainConfig(
        lr=0.02, weight_decay=0, iterations=10 * (STEPS + 1), lr_drops=(), batch_size=50,
        eval_every=1000,
    )  # fmt: skip
    steps = LearningCompression(weights, 300, config)

    class Watched(LearningCompression):
        def after_step(self, iteration: int, optimizer: torch.optim.Optimizer) -> None:
            super().after_step(iteration, optimizer)
            if (iteration + 1) % self.length == 0:
                gaps.append(self.gap())
                assert int(self.theta.count_nonzero()) == 300

    steps.__class__ = Watched
    train(model, mnist, config, hooks=steps)
    assert len(gaps) == STEPS + 1
    assert gaps[-1] < 0.1 * gaps[0]
    assert int(sum(w.count_nonzero() for w in steps.weights_to_keep().values())) == 300
    # The penalty's gradient is mu (w - theta) - lambda.
    model.zero_grad()
    steps.extra_loss(0).backward()
    mu, name = steps.mu(0), "1.weight"
    size = weights[name].numel()
    expected = mu * (weights[name].flatten() - steps.theta[:size]) - steps.multipliers[:size]
    torch.testing.assert_close(weights[name].grad.flatten(), expected, rtol=1e-4, atol=1e-7)
