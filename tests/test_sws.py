"""Soft weight sharing (SWS) against closed forms and torch's own mixtures."""

import math

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence
from training_parts import network, weights_of

from snip.data import Dataset, load
from snip.methods.sws import (
    GAMMA,
    GAMMA_AT_ZERO,
    Mixture,
    NegativeLogDensity,
    Sharing,
    _joined,
    divergence,
    hyper_prior,
    merged,
    quantised,
)
from snip.training import TrainConfig, train


@pytest.fixture(scope="module")
def mnist() -> Dataset:
    return load("mnist").subset(1000, 200)


def random_mixture(components: int) -> Mixture:
    torch.manual_seed(5)
    means = torch.randn(components, dtype=torch.float64)
    means[0] = 0
    log_precisions = torch.rand(components, dtype=torch.float64) * 3
    return Mixture(means, log_precisions, torch.randn(components).double().log_softmax(0))


def test_sws_density_and_its_gradients_agree_with_torchs_mixture() -> None:
    parts = [part.requires_grad_() for part in random_mixture(5)]
    weights = torch.randn(20_000, dtype=torch.float64, requires_grad=True)
    value = NegativeLogDensity.apply(weights, *parts)
    means, log_precisions, log_shares = parts
    exact = MixtureSameFamily(
        Categorical(logits=log_shares), Normal(means, (-log_precisions / 2).exp())
    )
    expected = -exact.log_prob(weights).sum()
    torch.testing.assert_close(value, expected)
    # torch normalises the shares, whose gradients differ by what changes their sum.
    found = torch.autograd.grad(value, [weights, means, log_precisions])
    wanted = torch.autograd.grad(expected, [weights, means, log_precisions])
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two)
    parts = [part.detach().requires_grad_() for part in parts]
    assert torch.autograd.gradcheck(NegativeLogDensity.apply, (weights[:50], *parts))


def test_sws_divergence_and_merging_in_closed_form() -> None:
    mixture = random_mixture(3)
    one, two = (Normal(mixture.means[k], (-mixture.log_precisions[k] / 2).exp()) for k in (0, 1))
    assert divergence(mixture, 0, 1) == pytest.approx(float(kl_divergence(one, two)))
    twins = Mixture(
        torch.tensor([0.0, 0.5, 0.5 + 1e-9, -0.2]).double(),
        torch.tensor([4.0, 3.0, 3.0, 2.0]).double(),
        torch.tensor([0.5, 0.2, 0.1, 0.2]).double().log(),
    )
    found = merged(twins)
    assert found.means.tolist() == pytest.approx([0.0, -0.2, 0.5])
    assert found.log_precisions.tolist() == pytest.approx([4.0, 2.0, 3.0])
    assert found.log_shares.exp().tolist() == pytest.approx([0.5, 0.2, 0.3])


def test_sws_joins_two_components_by_their_shares() -> None:
    one, two = (1.0, math.log(1 / 4), math.log(0.3)), (2.0, math.log(1 / 8), math.log(0.1))
    mean, log_precision, log_share = _joined(one, two)
    assert mean == pytest.approx((0.3 * 1 + 0.1 * 2) / 0.4)
    assert math.exp(-log_precision) == pytest.approx((0.3 * 4 + 0.1 * 8) / 0.4)
    assert math.exp(log_share) == pytest.approx(0.4)


def test_sws_gives_each_weight_the_mean_of_its_component() -> None:
    mixture = Mixture(
        torch.tensor([0.0, 1.0, -1.0]), torch.tensor([2.0, 4.0, 4.0]), torch.full((3,), 1 / 3).log()
    )
    values, odds = quantised(torch.tensor([0.1, 0.9, -1.2, 0.0]), mixture)
    assert values.tolist() == [0.0, 1.0, -1.0, 0.0]
    assert (odds > 0).tolist() == [False, True, True, False]


def test_sws_hyper_prior_is_a_gamma_density() -> None:
    log_precisions = torch.tensor([7.0, 6.0, 8.0], dtype=torch.float64)

    def negative_log(a: float, b: float, g: torch.Tensor) -> torch.Tensor:
        gamma = torch.distributions.Gamma(torch.tensor(a).double(), torch.tensor(b).double())
        return -gamma.log_prob(g.exp())

    def exact(g: torch.Tensor) -> torch.Tensor:
        return negative_log(*GAMMA_AT_ZERO, g[:1]).sum() + negative_log(*GAMMA, g[1:]).sum()

    other = log_precisions + torch.tensor([0.3, -0.2, 0.1])
    difference = hyper_prior(other) - hyper_prior(log_precisions)
    torch.testing.assert_close(difference, exact(other) - exact(log_precisions))


def test_sws_learns_the_mixture_beside_the_weights(mnist: Dataset) -> None:
    model = network()
    config = TrainConfig("adam", lr=5e-4, weight_decay=0, iterations=20, lr_drops=(), batch_size=50)
    sharing = Sharing(weights_of(model), images=1000)
    before = [p.detach().clone() for p in sharing.parameters()]
    train(model, mnist, config, hooks=sharing)
    assert all(not torch.equal(a, b) for a, b in zip(before, sharing.parameters(), strict=True))
    mixture = sharing.mixture()
    assert float(mixture.log_shares.exp().sum()) == pytest.approx(1)
    assert mixture.means[0] == 0
