"""All labels that cross-entropy accepts: the fused step and the ordinary loop agree on them."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from step_parts import assert_same, mlp, ordinary, pair_of_networks
from torch import nn

import snip
from snip.engine.fused.straight import MOST_PROGRAMS
from snip.engine.kernels.library import available
from snip.training import train_step

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


def steps_of(fast, other):
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (fast, other))
    return snip.training_step(fast, mine), theirs


def smooth(labels: torch.Tensor) -> torch.Tensor:
    """Probabilities whose highest is at the label."""
    return F.one_hot(labels, 7) * 0.8 + 0.2 / 7


def test_probabilities_are_learned_and_their_highest_counts():
    fast, other, (images, labels) = pair_of_networks(mlp)
    step, theirs = steps_of(fast, other)
    for _ in range(3):
        with torch.no_grad():
            wanted = (other(images).argmax(1) != labels).sum().item()
        loss, wrong = step(images, smooth(labels))
        assert wrong == wanted
        assert loss == pytest.approx(ordinary(other, theirs, images, smooth(labels)), rel=1e-5)
    assert_same(fast, other)


def test_ignored_labels_are_not_wrong():
    fast, other, (images, labels) = pair_of_networks(mlp)
    step, theirs = steps_of(fast, other)
    with torch.no_grad():
        answers = other(images).argmax(1)
    ignored = torch.where(answers == labels, labels, (answers + 1) % 7)
    ignored[::2] = -100
    wanted = ((answers != ignored) & (ignored != -100)).sum().item()
    loss, wrong = step(images, ignored)
    assert wrong == wanted > 0
    assert loss == pytest.approx(ordinary(other, theirs, images, ignored), rel=1e-5)
    assert_same(fast, other)
    assert step(images, torch.full_like(labels, -100))[1] == 0


@pytest.mark.parametrize(
    "bad",
    [
        lambda labels: smooth(labels)[:, :6],
        lambda labels: labels.float(),
        lambda labels: labels[:-1],
        lambda labels: labels + 7,
        lambda labels: labels - 8,
        lambda labels: labels[:, None],
        lambda labels: labels.to(torch.int16),
    ],
)
def test_labels_that_cross_entropy_refuses_move_nothing(bad):
    fast, other, (images, labels) = pair_of_networks(mlp)
    step, theirs = steps_of(fast, other)
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        ordinary(other, theirs, images, bad(labels))
    before = copy.deepcopy(fast)
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        step(images, bad(labels))
    assert_same(fast, before, 0)


def test_images_that_want_a_gradient_get_it():
    fast, other, (images, labels) = pair_of_networks(mlp)
    step, theirs = steps_of(fast, other)
    seen, wanted = images.clone().requires_grad_(), images.clone().requires_grad_()
    step(seen, labels)
    ordinary(other, theirs, wanted, labels)
    torch.testing.assert_close(seen.grad, wanted.grad)
    assert_same(fast, other)


def test_without_gradients_there_is_no_step():
    fast, other, (images, labels) = pair_of_networks(mlp)
    step, _ = steps_of(fast, other)
    with torch.no_grad(), pytest.raises(RuntimeError, match="grad"):
        step(images, labels)
    assert_same(fast, other, 0)


class Dense(nn.Module):
    """One answer for every pixel, or for a lone image none for a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


def test_answers_of_every_pixel_are_counted():
    model, x = Dense(), torch.randn(3, 2, 5, 5)
    answers = model(x).argmax(1)
    labels = answers.clone()
    labels[0, 0, :3] = (labels[0, 0, :3] + 1) % 4
    labels[1, 1] = -100
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert train_step(model, optimizer, x, labels)[1] == 3


def test_a_lone_sample_without_a_batch():
    model = nn.Linear(5, 3)
    x = torch.randn(5)
    label = model(x).argmax(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    assert train_step(model, optimizer, x, label)[1] == 0
    assert train_step(model, optimizer, x, (label + 1) % 3)[1] == 1
    assert train_step(model, optimizer, x, F.one_hot(label, 3).float())[1] == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_answers_that_are_no_numbers_are_counted_as_torch_does(number):
    """A NaN is the largest answer of all, and the first of several counts."""
    fast, other, (images, _) = pair_of_networks(mlp)
    for network in (fast, other):
        with torch.no_grad():
            network[-1].bias[2::3] = number  # the third class, and the sixth
    labels = torch.arange(len(images)) % 7
    step, theirs = steps_of(fast, other)
    loss, wrong = step(images, labels)
    wanted = train_step(other, theirs, images, labels)
    assert (wrong, math.isfinite(loss)) == (wanted[1], math.isfinite(wanted[0]))


def test_images_of_inference_mode_are_left_to_torch():
    fast, _, (images, labels) = pair_of_networks(mlp)
    with torch.inference_mode():
        made = images.clone()
    straight = fast.snip_conversion.straight
    assert straight.takes_batch(images, labels)
    assert not straight.takes_batch(made, labels)


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
def test_settings_that_are_tensors_are_read_at_every_step(name):
    fast, other, (images, labels) = pair_of_networks(mlp)
    settings = [{"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1} for _ in range(2)]
    for mine in settings:
        mine[name] = torch.tensor(mine[name])
    mine, theirs = (
        torch.optim.SGD(network.parameters(), **given)
        for network, given in zip((fast, other), settings, strict=True)
    )
    step = snip.training_step(fast, mine)
    for value in (0.1, 0.5):
        for given in settings:
            given[name].fill_(value)
        step(images, labels)
        ordinary(other, theirs, images, labels)
    assert_same(fast, other)


def test_settings_of_another_kind_are_refused_by_torch():
    fast, _, (images, labels) = pair_of_networks(mlp)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
    step = snip.training_step(fast, optimizer)
    step(images, labels)
    optimizer.param_groups[0]["momentum"] = "0.9"
    with pytest.raises(TypeError, match="mul_"):
        step(images, labels)


def test_the_programs_of_a_network_are_bounded():
    fast, other, (images, _) = pair_of_networks(mlp, count=64)
    with torch.no_grad():
        for count in range(1, 65):
            torch.testing.assert_close(fast(images[:count]), other(images)[:count])
    assert len(fast.snip_conversion.straight._programs) == MOST_PROGRAMS
