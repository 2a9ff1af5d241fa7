"""All labels that cross-entropy accepts: the fused step and the ordinary loop agree on them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from test_training_step import assert_same, mlp, ordinary, pair_of_networks
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.training import train_step

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")


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
