"""What the fused step leaves to torch: labels, hooks and networks that it does not know."""

import copy
import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from step_parts import assert_same, cnn, mlp, ordinary, pair_of_networks
from torch.optim.optimizer import register_optimizer_step_post_hook

import snip
from snip.engine.fused.step import wrong_answers


def test_a_learning_rate_schedule_does_not_complain():
    fast, _, (images, labels) = pair_of_networks(mlp)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        snip.training_step(fast, optimizer)(images, labels)
        schedule.step()


def test_strange_labels_are_torchs_business():
    fast, other, (images, labels) = pair_of_networks(mlp)
    step = snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    ignored = labels.clone()
    ignored[::3] = -100
    step(images, ignored)
    ordinary(other, theirs, images, ignored)
    assert_same(fast, other)
    with pytest.raises(IndexError):
        step(images, labels + 7)
    assert_same(fast, other)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_changes_nothing(bad):
    fast, other, (images, labels) = pair_of_networks(mlp)
    images[3] = bad
    loss, _ = snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))(images, labels)
    assert loss != loss or abs(loss) == float("inf")
    assert_same(fast, other, 0)


def test_what_has_no_native_way_goes_torchs_way():
    for make in (mlp, cnn):
        fast, other, (images, labels) = pair_of_networks(make)
        plain = snip.densify(copy.deepcopy(other))
        doubles = fast.double()
        for network, data in ((plain, images), (doubles, images.double())):
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
            loss, _ = snip.training_step(network, optimizer)(data, labels)
            assert loss == pytest.approx(F.cross_entropy(other(images), labels).item(), rel=1e-4)


def test_hooks_on_gradients_are_heard():
    fast, _, (images, labels) = pair_of_networks(mlp)
    heard = []
    next(fast.parameters()).register_hook(lambda gradient: heard.append(gradient))
    snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))(images, labels)
    assert len(heard) == 1


def test_an_optimiser_of_another_model_is_refused():
    fast, other, _ = pair_of_networks(mlp)
    with pytest.raises(snip.InputError, match=r"after snip\.accelerate"):
        snip.training_step(fast, torch.optim.SGD(other.parameters(), lr=0.1))


def test_autograd_notices_that_weights_have_changed():
    fast, _, (images, labels) = pair_of_networks(mlp)
    loss = fast(images).square().sum()
    snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))(images, labels)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_labels_of_another_kind_go_torchs_way():
    fast, other, (images, labels) = pair_of_networks(mlp)
    step = snip.training_step(fast, torch.optim.SGD(fast.parameters(), lr=0.1))
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    for kind in (labels.to(torch.uint8), F.one_hot(labels, 7).float()):
        try:
            expected = F.cross_entropy(other(images), kind).item()
        except RuntimeError:
            with pytest.raises(RuntimeError):
                step(images, kind)
            continue
        optimizer_step = ordinary(other, theirs, images, kind)
        if kind.ndim == 1:
            assert step(images, kind)[0] == pytest.approx(expected, rel=1e-4)
            assert optimizer_step == pytest.approx(expected, rel=1e-4)


def test_hooks_of_the_network_and_of_all_optimisers_are_heard():
    fast, _, (images, labels) = pair_of_networks(mlp)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    heard = []
    handles = [
        fast.register_forward_pre_hook(lambda *_: heard.append("network")),
        register_optimizer_step_post_hook(lambda *_: heard.append("step")),
    ]
    snip.training_step(fast, optimizer)(images, labels)
    handles[0].remove()
    snip.training_step(fast, optimizer)(images, labels)
    handles[1].remove()
    assert heard == ["network", "step", "step"]


def test_a_step_that_was_replaced_is_called():
    fast, _, (images, labels) = pair_of_networks(mlp)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    take_step = snip.training_step(fast, optimizer)
    ordinary_step, calls = optimizer.step, []

    @functools.wraps(ordinary_step)
    def counting(*arguments):
        calls.append("step")
        return ordinary_step(*arguments)

    optimizer.step = counting
    take_step(images, labels)
    assert calls == ["step"]


def test_a_schedule_of_rates_keeps_the_native_update():
    fast, _, (images, labels) = pair_of_networks(mlp)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    snip.training_step(fast, optimizer)(images, labels)
    assert all(p.grad is None for p in fast.parameters())


def test_no_label_of_a_byte_is_ignored():
    labels = torch.full((3,), 156, dtype=torch.uint8)  # -100 in a byte
    assert wrong_answers(torch.eye(3, 200), labels) == 3
    assert wrong_answers(torch.eye(3, 200), torch.full((3,), -100)) == 0
