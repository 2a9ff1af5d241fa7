"""Methods that train, where nothing is trained: the dense weights and the method's rule decide."""

import numpy as np
import pytest
import torch
from torch import nn

import snip
from snip.masks import Masks
from snip.methods import METHODS
from snip.methods.course import Course
from snip.methods.dns import FIRST_KEPT, thresholds
from snip.methods.obd import hessian_diagonal, saliencies
from snip.training import TrainConfig
from snip.training.parts import data_of
from snip.training.phases import Phases

CONFIG = TrainConfig(lr=0.02, iterations=12, lr_drops=(), weight_decay=0.3)
Weights = dict[str, torch.Tensor]


class Untrained(Phases):
    """Phases of no length: masks are held, and nothing is learnt."""

    def train(self, name, config, *, start=None, hooks=None):
        if start is not None:
            start().apply(self.model)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    with torch.no_grad():
        model[2].weight.mul_(5)
    return model


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(1)
    mixed = torch.randn(200, 20) @ torch.randn(20, 20)  # inputs that tell of each other
    return [(mixed, torch.arange(200) % 5)]


def pruned(name: str, model: nn.Module, sparsity: float) -> tuple[Masks, Weights]:
    """What the method keeps, and the weights before."""
    method = METHODS[name]
    weights = {n: p for n, p in model.named_parameters() if p.ndim > 1 or method.biases}
    dense = {n: p.detach().clone() for n, p in weights.items()}
    course = Course(Untrained(model, data_of(batches()), CONFIG), sparsity, weights)
    return method.prune(course), dense


def of_size(_model: nn.Module, dense: Weights) -> Weights:
    return {name: weight.abs() for name, weight in dense.items()}


def in_deviations(_model: nn.Module, dense: Weights) -> Weights:
    return {name: weight.abs() / weight.std() for name, weight in dense.items()}


def in_thresholds(_model: nn.Module, dense: Weights) -> Weights:
    kept = round(0.1 * sum(weight.numel() for weight in dense.values()))
    limits = thresholds(dense, dict.fromkeys(dense, 0.0), FIRST_KEPT * kept)
    return {name: weight.abs() / limits[name] for name, weight in dense.items()}


def by_loss(model: nn.Module, dense: Weights) -> Weights:
    diagonal = hessian_diagonal(model, batches(), dict(model.named_parameters()))
    return saliencies(dense, diagonal, 0.3)


@pytest.mark.parametrize(
    ("method", "scores"),
    [
        ("lwc", in_deviations),  # those of the dense network, not of what a round has left
        ("dns", in_thresholds),
        ("lc", of_size),
        ("sws", of_size),  # with the mixture as it begins, the odds against zero rise with |w|
        ("svd", of_size),  # all weights have the same noise
    ],
)
def test_the_best_of_the_dense_network_stay(method: str, scores) -> None:
    model = network()
    masks, dense = pruned(method, model, 0.9)
    assert masks == snip.select(scores(model, dense), sparsity=0.9)
    masks.apply(model)
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name), dense[name] * mask)


def test_lc_gives_the_network_theta_and_not_w() -> None:
    model = network()

    class Compressed(Untrained):
        def train(self, name, config, *, start=None, hooks=None):
            hooks.theta.mul_(2)

    weights = {n: p for n, p in model.named_parameters() if p.ndim > 1}
    dense = {n: p.detach().clone() for n, p in weights.items()}
    course = Course(Compressed(model, data_of(batches()), CONFIG), 0.9, weights)
    masks = METHODS["lc"].prune(course)
    assert "the constraint w = theta was not met" in (masks.provenance.note or "")
    for name, mask in masks.items():
        assert torch.equal(model.get_parameter(name), 2 * dense[name] * mask)


def test_obd_ranks_by_the_loss_with_its_decay() -> None:
    """In rounds the diagonal changes; the first round is that of the dense network."""
    model = network()
    expected = snip.select(by_loss(model, dict(model.named_parameters())), sparsity=0.2)
    first: list[Masks] = []

    class Noted(Untrained):
        def train(self, name, config, *, start=None, hooks=None):
            first.append(start())
            first[-1].apply(self.model)

    weights = dict(model.named_parameters())
    sparsity = 1 - 0.8**8  # of which the first of eight rounds keeps 0.8
    METHODS["obd"].prune(Course(Noted(model, data_of(batches()), CONFIG), sparsity, weights))
    assert first[0] == expected


def test_lobs_ends_with_the_least_squares_solution_on_the_weights_it_keeps() -> None:
    """Round by round, each from the weights of the last: least squares on the last support."""
    model = nn.Sequential(nn.Linear(20, 6))
    masks, dense = pruned("lobs", model, 0.7)
    assert masks.kept == round(masks.total * 0.3)
    x = batches()[0][0].double().numpy()
    y = np.concatenate([x, np.ones((len(x), 1))], 1)
    before = torch.cat([dense["0.weight"], dense["0.bias"][:, None]], 1).double().numpy()
    after = torch.cat([model[0].weight, model[0].bias[:, None]], 1).detach().numpy()
    kept = torch.cat([masks["0.weight"], masks["0.bias"][:, None]], 1).numpy()
    for unit in range(6):
        s = kept[unit]
        best = np.linalg.lstsq(y[:, s], y @ before[unit], rcond=None)[0]
        np.testing.assert_allclose(after[unit][s], best, rtol=1e-3, atol=1e-4)
        assert not after[unit][~s].any()
