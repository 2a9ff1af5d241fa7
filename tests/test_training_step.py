"""The fused step does what torch's own loop does."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from step_parts import assert_same, batch_for, cnn, mlp, on_graph, ordinary, pair_of_networks
from torch import nn

import snip

SETTINGS = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    {"lr": 0.05, "momentum": 0.9, "dampening": 0.5},
]


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_equal_the_ordinary_loop(make, settings):
    fast, other, (images, labels) = pair_of_networks(make)
    mine, theirs = (torch.optim.SGD(m.parameters(), **settings) for m in (fast, other))
    step = snip.training_step(fast, mine)
    for _ in range(6):
        loss, wrong = step(images, labels)
        with torch.no_grad():
            assert wrong == (other(images).argmax(1) != labels).sum().item()
        assert loss == pytest.approx(ordinary(other, theirs, images, labels), rel=1e-5)
    assert_same(fast, other)


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("count", [1, 3, 7, 8, 9, 16, 65, 130])
def test_any_batch_size_trains_and_infers(make, count):
    fast, other, _ = pair_of_networks(make)
    images, labels = batch_for(make(), count)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), on_graph(other, images), rtol=1e-4, atol=1e-5)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (fast, other))
    loss, _ = snip.training_step(fast, mine)(images, labels)
    assert loss == pytest.approx(ordinary(other, theirs, images, labels), rel=1e-5)
    assert_same(fast, other)


@pytest.mark.parametrize("make", [mlp, cnn])
def test_batch_sizes_may_change_from_step_to_step(make):
    fast, other, (images, labels) = pair_of_networks(make)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (fast, other))
    step = snip.training_step(fast, mine)
    for count in (24, 5, 24, 24, 17):
        step(images[:count], labels[:count])
        ordinary(other, theirs, images[:count], labels[:count])
    assert_same(fast, other)


def test_groups_frozen_parameters_and_changing_rates():
    fast, other, (images, labels) = pair_of_networks(mlp)
    steps = []
    for network in (fast, other):
        first, *rest = network.parameters()
        rest[0].requires_grad_(False)
        groups = [{"params": [first], "lr": 0.3}, {"params": rest[1:], "weight_decay": 0.01}]
        steps.append(torch.optim.SGD(groups, lr=0.1, momentum=0.5))
    step = snip.training_step(fast, steps[0])
    before = list(fast.parameters())[1].clone()
    for rate in (0.1, 0.1, 0.02):
        for optimizer in steps:
            optimizer.param_groups[1]["lr"] = rate
        step(images, labels)
        ordinary(other, steps[1], images, labels)
    assert_same(fast, other)
    assert torch.equal(list(fast.parameters())[1], before)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_other_optimisers_take_their_own_step(kind):
    fast, other, (images, labels) = pair_of_networks(mlp)
    mine, theirs = (kind(m.parameters(), lr=1e-3) for m in (fast, other))
    step = snip.training_step(fast, mine)
    for _ in range(3):
        step(images, labels)
        ordinary(other, theirs, images, labels)
    assert_same(fast, other, 1e-4)


def test_the_optimiser_can_be_saved_and_taken_up_by_the_ordinary_loop():
    fast, other, (images, labels) = pair_of_networks(mlp)
    mine = torch.optim.SGD(fast.parameters(), lr=0.1, momentum=0.9)
    step = snip.training_step(fast, mine)
    step(images, labels)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    other.load_state_dict(fast.state_dict())
    theirs.load_state_dict(pickle.loads(pickle.dumps(mine.state_dict())))
    for _ in range(3):
        step(images, labels)
        ordinary(other, theirs, images, labels)
    assert_same(fast, other)
    # Loading replaces the momentum buffers: the step must not go on with the old ones.
    mine.load_state_dict(copy.deepcopy(theirs.state_dict()))
    step(images, labels)
    ordinary(other, theirs, images, labels)
    assert_same(fast, other)


@pytest.mark.parametrize("make", [mlp, cnn])
def test_the_number_of_threads_changes_no_bit(make):
    fast, other, _ = pair_of_networks(make)
    images, labels = batch_for(make(), 130)
    threads = torch.get_num_threads()
    try:
        for network, count in ((fast, 1), (other, 2)):
            torch.set_num_threads(count)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
            step = snip.training_step(network, optimizer)
            for _ in range(3):
                step(images, labels)
    finally:
        torch.set_num_threads(threads)
    for p, q in zip(fast.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)


def test_copies_and_pickles_keep_the_native_way():
    fast, _, (images, _) = pair_of_networks(cnn)
    with torch.no_grad():
        expected = fast(images)
        for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
            assert torch.equal(twin(images), expected)
            next(twin.parameters()).mul_(2)
            assert not torch.equal(twin(images), expected)
        assert torch.equal(fast(images), expected)


def test_freezing_and_unfreezing_is_noticed():
    for make in (mlp, cnn):
        fast, other, (images, labels) = pair_of_networks(make)
        mine, theirs = (
            torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (fast, other)
        )
        step = snip.training_step(fast, mine)
        for frozen in (False, True, True, False):
            for network in (fast, other):
                next(network.parameters()).requires_grad_(not frozen)
                network.zero_grad()
            step(images, labels)
            ordinary(other, theirs, images, labels)
            with torch.no_grad():
                fast(images)
        assert_same(fast, other)


@pytest.mark.parametrize("make", [mlp, cnn])
def test_biases_of_which_some_are_gone(make):
    torch.manual_seed(0)
    model = make()
    images, labels = batch_for(model, 24)
    snip.prune(model, (images, labels), sparsity=0.6)
    fast = snip.accelerate(model, images, ways={})
    assert fast.snip_conversion.straight is not None
    kept = [m.packed["bias"] for m in fast.modules() if hasattr(m, "packed")]
    assert any(0 < bias.kept < bias.total for bias in kept)
    other = copy.deepcopy(fast)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (fast, other))
    step = snip.training_step(fast, mine)
    for _ in range(4):
        step(images, labels)
        ordinary(other, theirs, images, labels)
    assert_same(fast, other)
    with torch.no_grad():
        torch.testing.assert_close(fast(images), on_graph(other, images), rtol=1e-4, atol=1e-5)


def test_replaced_parameters_are_seen():
    fast, other, (images, _) = pair_of_networks(mlp)
    with torch.no_grad():
        before = fast(images)
        new = {name: p * 2 for name, p in fast.named_parameters()}
        expected = torch.func.functional_call(other, new, (images,))
        assert not torch.equal(expected, before)
        layer = next(m for m in fast.modules() if hasattr(m, "packed"))
        layer.weight = nn.Parameter(layer.weight * 2)
        changed = copy.deepcopy(fast)
        torch.testing.assert_close(fast(images), on_graph(changed, images))
        assert not torch.equal(fast(images), before)


def test_a_layer_that_runs_twice_gets_both_gradients():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 7)

        def forward(self, x):
            return self.b(self.a(F.relu(self.a(x.flatten(1)))))

    torch.manual_seed(0)
    model, images, labels = Twice(), torch.randn(9, 1, 8, 8), torch.randint(0, 7, (9,))
    snip.prune(model, (images, labels), sparsity=0.5)
    fast = snip.accelerate(model, images, ways={})
    other = copy.deepcopy(fast)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (fast, other))
    snip.training_step(fast, mine)(images, labels)
    ordinary(other, theirs, images, labels)
    assert_same(fast, other)
