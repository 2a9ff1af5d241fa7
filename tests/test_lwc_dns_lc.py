"""LWC's thresholds, dynamic network surgery (DNS) and learning-compression (LC), step by step."""

import math

import pytest
import torch
from expected_warnings import expects
from torch import nn
from training_parts import StoppedError, network, same_weights, weights_of

import snip
from snip.common.errors import FileError
from snip.data import load
from snip.methods import dns, lwc
from snip.methods.course import Course
from snip.methods.dns import Surgery, operated, statistics, thresholds
from snip.methods.lc import STEPS, LearningCompression, compressed
from snip.methods.lwc import in_thresholds
from snip.training import TrainConfig, load_checkpoint, train
from snip.training.hooks import replaced
from snip.training.parts import data_for
from snip.training.phases import Phases
from snip.training.session import Options

TINY = TrainConfig(lr=0.02, iterations=12, lr_drops=())


def scores(**weights):
    return in_thresholds(weights, lwc.thresholds(weights, dict.fromkeys(weights, 1.0)))


def test_weights_are_ranked_in_deviations_of_their_layer():
    weight = torch.tensor([[1.0, -1.0, 2.0, -2.0]])
    found = scores(wide=weight, narrow=weight / 8)
    assert torch.allclose(found["wide"], weight.abs() / weight.std())
    assert torch.equal(found["wide"], found["narrow"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [5.0, -0.1, 1e-3, 300.0])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7)])
def test_one_weight_and_equal_weights_have_the_score_of_their_mean(shape, value, dtype):
    found = scores(w=torch.full(shape, value, dtype=dtype))["w"]
    assert torch.allclose(found, torch.ones_like(found))


def test_a_layer_that_is_zero_all_over_goes_first():
    assert not scores(w=torch.zeros(2, 3))["w"].any()


@pytest.mark.filterwarnings("ignore:nothing is left")
def test_lwc_takes_a_network_with_a_weight_of_one_element():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 3))
    batches = [(torch.randn(20, 1), torch.arange(20) % 3)]
    masks = snip.prune(model, batches, sparsity=0.5, method="lwc", training=TINY)
    assert (masks.kept, masks.total) == (2, 4)


@expects("left out", "losses")
def test_lwc_takes_a_layer_of_equal_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    nn.init.constant_(model[0].weight, 5.0)
    batches = [(torch.randn(20, 4), torch.arange(20) % 3)]
    masks = snip.prune(model, batches, sparsity=0.5, method="lwc", training=TINY)
    assert masks.kept == 21


def test_dns_cuts_what_is_small_and_splices_what_is_large():
    weight = torch.tensor([0.5, -0.89, 0.95, -1.05, 1.2, 0.95, -1.05, 1.2])
    kept = torch.tensor([True, True, True, True, True, False, False, False])
    expected = [False, False, True, True, True, False, False, True]
    assert operated(kept, weight, 1.0).tolist() == expected


def test_dns_thresholds_by_hand():
    weights = {"a.weight": torch.tensor([[1.0, -3.0]]), "a.bias": torch.tensor([0.0])}
    assert statistics(weights) == {"a": (2.0, 1.0)}  # of |w|, without the zero
    limits = thresholds(weights, dict.fromkeys(weights, 0.0), 1)
    assert limits["a.weight"] == limits["a.bias"]
    assert int((weights["a.weight"].abs() > limits["a.weight"]).sum()) == 1


def test_dns_takes_a_layer_that_is_zero_all_over():
    weights = {"a.weight": torch.zeros(2, 2), "b.weight": torch.tensor([[1.0, -3.0]])}
    limits = thresholds(weights, dict.fromkeys(weights, 0.0), 1)
    assert limits["a.weight"] == 0.0
    surgery = Surgery({n: nn.Parameter(w) for n, w in weights.items()}, limits, steps=10)
    surgery.before_step(0)
    assert surgery.kept[:4].tolist() == [False] * 4
    assert surgery.kept[5]
    assert all(score.isfinite().all() for score in surgery.scores().values())


def test_dns_brings_back_a_connection_whose_gradient_asks_for_it():
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[0.1, 2.0]])
    surgery = Surgery({"weight": model.weight}, {"weight": 1.0}, steps=10)
    surgery.before_step(0)  # with certainty, the first time
    assert surgery.kept.tolist() == [False, True]
    with replaced(model, surgery.weights_to_train()):
        assert model.weight.tolist() == [[0.0, 2.0]]
        model(torch.tensor([[-1.0, 0.0]])).sum().backward()
    assert model.weight.tolist() == [[pytest.approx(0.1), 2.0]]
    model.weight.data -= 1.5 * model.weight.grad  # though the connection is cut, it grows
    surgery.before_step(0)
    assert surgery.kept.tolist() == [True, True]
    scores = surgery.scores()["weight"].flatten()
    assert scores[0] < scores[1]


def test_dns_keeps_what_it_has_before_what_it_has_cut():
    """Between the thresholds for cutting and for splicing, the larger weight may be the cut one."""
    weight = nn.Parameter(torch.tensor([0.95, 1.05]))
    surgery = Surgery({"weight": weight}, {"weight": 1.0}, steps=10)
    surgery.kept[1] = False
    scores = surgery.scores()["weight"]
    assert scores[0] > scores[1]


def pruned_in(folder):
    """A network, and the masks of a surgery that writes a checkpoint after every step."""
    model = network()
    config = TrainConfig(lr=0.1, iterations=12, lr_drops=(), batch_size=50, eval_every=100)
    options = Options(folder, progress=False, checkpoint_seconds=0)
    phases = Phases(model, data_for(load("mnist").subset(500, 100), config), config, options)
    return dns.prune(Course(phases, 0.8, dict(model.named_parameters()))), model


def stop_in_surgery(folder, monkeypatch):
    operate = Surgery.before_step

    def stopping(surgery, iteration):
        if iteration == 5:
            raise StoppedError
        operate(surgery, iteration)

    with monkeypatch.context() as patched:
        patched.setattr(Surgery, "before_step", stopping)
        with pytest.raises(StoppedError):
            pruned_in(folder)


def test_dns_goes_on_where_sums_have_other_last_digits(tmp_path, monkeypatch):
    """As with another number of threads: the limits are those that the surgery began with."""
    whole, whole_model = pruned_in(None)
    stop_in_surgery(tmp_path, monkeypatch)

    def elsewhere(*args):
        return {name: math.nextafter(limit, 9.0) for name, limit in thresholds(*args).items()}

    monkeypatch.setattr(dns, "thresholds", elsewhere)
    again, model = pruned_in(tmp_path)
    assert again == whole
    assert same_weights(model, whole_model)
    saved = load_checkpoint(tmp_path / "surgery" / "checkpoint.pt")["hooks"]
    values = {name: p.detach() for name, p in network().named_parameters()}
    first = thresholds(values, dict.fromkeys(values, 0.0), dns.FIRST_KEPT * whole.kept)
    assert saved["limits"].tolist() == list(first.values())


def test_dns_with_other_rates_is_another_run(tmp_path, monkeypatch):
    stop_in_surgery(tmp_path, monkeypatch)
    monkeypatch.setattr(dns, "FIRST_KEPT", 0.5)
    with pytest.raises(FileError, match=r"another configuration \(dns.kept"):
        pruned_in(tmp_path)


def test_a_surgery_of_an_earlier_version_is_refused_in_words(tmp_path, monkeypatch):
    """Its limits were part of the run's identity, and the checkpoint has none."""
    stop_in_surgery(tmp_path, monkeypatch)
    path = tmp_path / "surgery" / "checkpoint.pt"
    content = torch.load(path, weights_only=True)
    del content["hooks"]["limits"], content["identity"]["dns.kept"]
    content["identity"]["dns.limits"] = "{}"
    torch.save(content, path)
    with pytest.raises(FileError, match=r"dns.limits .* start over in this one with resume=False"):
        pruned_in(tmp_path)


@pytest.fixture(scope="module")
def mnist():
    return load("mnist").subset(1000, 200)


def test_lc_compression_keeps_the_largest_values():
    weights = {"a": torch.tensor([3.0, -1.0]), "b": torch.tensor([[2.0, -4.0]])}
    found = compressed(weights, 2)
    assert found["a"].tolist() == [3.0, 0.0]
    assert found["b"].tolist() == [[0.0, -4.0]]


def test_lc_steps_by_hand():
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
def test_after_a_c_step_adam_goes_on_like_a_fresh_one(kind):
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


def test_lc_under_adam_resumes_right_after_a_c_step(mnist, tmp_path):
    config = TrainConfig(
        lr=0.001, weight_decay=0, iterations=2 * (STEPS + 1), lr_drops=(), batch_size=50,
        eval_every=1000, optimizer="adam",
    )  # fmt: skip

    class Stopping(LearningCompression):
        def rate(self, iteration):
            if iteration == 2 * self.length:  # the optimiser's count was just reset
                raise StoppedError
            return super().rate(iteration)

    def trained(kind, folder):
        model = network()
        hooks = kind(weights_of(model), 300, config)
        train(model, mnist, config, folder=folder, hooks=hooks, checkpoint_seconds=0)
        return model

    with pytest.raises(StoppedError):
        trained(Stopping, tmp_path)
    state = load_checkpoint(tmp_path / "checkpoint.pt")["optimizer"]["state"]
    assert [float(part["step"]) for part in state.values()] == [0.0] * len(state)
    assert same_weights(trained(LearningCompression, tmp_path), trained(LearningCompression, None))


def test_lc_meets_the_constraint_with_exactly_kappa_weights(mnist):
    model = network()
    weights, gaps = weights_of(model), []
    config = TrainConfig(
        lr=0.02, weight_decay=0, iterations=10 * (STEPS + 1), lr_drops=(), batch_size=50,
        eval_every=1000,
    )  # fmt: skip
    steps = LearningCompression(weights, 300, config)

    class Watched(LearningCompression):
        def after_step(self, iteration, optimizer):
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
