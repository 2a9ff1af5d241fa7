"""The fused step does what torch's own loop does."""

import copy
import functools
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import snip
from snip.engine.fused.step import wrong_answers

SETTINGS = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4},
    {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    {"lr": 0.05, "momentum": 0.9, "dampening": 0.5},
]


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 7)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 8, 3, stride=2), nn.MaxPool2d(2, stride=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(8 * 2 * 2, 20), nn.ReLU(), nn.Linear(20, 7)),
    )


def batch_for(model: nn.Module, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (2, 14, 14) if any(isinstance(m, nn.Conv2d) for m in model) else (1, 8, 8)
    return torch.randn(count, *shape), torch.randint(0, 7, (count,))


def pair_of_networks(make, count: int = 24, sparsity: float = 0.7):
    """Two equal accelerated networks and a batch."""
    model = make()
    batch = batch_for(model, count)
    snip.prune(model, batch, sparsity=sparsity, params=lambda name, _m, _p: "weight" in name)
    fast = snip.accelerate(model, batch, ways={})
    assert fast.snip_conversion.straight is not None
    return fast, copy.deepcopy(fast), batch


def on_graph(network: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """The network's output by its converted graph, not by the one native call."""
    return network.snip_conversion.run(network, images)


def ordinary(model, optimizer, images, labels) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def assert_same(one: nn.Module, two: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=name)


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
