"""Soft weight sharing (SWS) and variational dropout (SVD) against closed forms and integration."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, kl_divergence
from training_parts import network, weights_of

from snip.data import load
from snip.methods.layer_matrices import columns, rows
from snip.methods.svd import Noise, kl, log_alpha
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
def mnist():
    return load("mnist").subset(1000, 200)


def random_mixture(components):
    torch.manual_seed(5)
    means = torch.randn(components, dtype=torch.float64)
    means[0] = 0
    log_precisions = torch.rand(components, dtype=torch.float64) * 3
    return Mixture(means, log_precisions, torch.randn(components).double().log_softmax(0))


def test_sws_density_and_its_gradients_agree_with_torchs_mixture():
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


def test_sws_divergence_and_merging_in_closed_form():
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


def test_sws_joins_two_components_by_their_shares():
    one, two = (1.0, math.log(1 / 4), math.log(0.3)), (2.0, math.log(1 / 8), math.log(0.1))
    mean, log_precision, log_share = _joined(one, two)
    assert mean == pytest.approx((0.3 * 1 + 0.1 * 2) / 0.4)
    assert math.exp(-log_precision) == pytest.approx((0.3 * 4 + 0.1 * 8) / 0.4)
    assert math.exp(log_share) == pytest.approx(0.4)


def test_sws_gives_each_weight_the_mean_of_its_component():
    mixture = Mixture(
        torch.tensor([0.0, 1.0, -1.0]), torch.tensor([2.0, 4.0, 4.0]), torch.full((3,), 1 / 3).log()
    )
    values, odds = quantised(torch.tensor([0.1, 0.9, -1.2, 0.0]), mixture)
    assert values.tolist() == [0.0, 1.0, -1.0, 0.0]
    assert (odds > 0).tolist() == [False, True, True, False]


def test_sws_hyper_prior_is_a_gamma_density():
    log_precisions = torch.tensor([7.0, 6.0, 8.0], dtype=torch.float64)

    def negative_log(a, b, g):
        gamma = torch.distributions.Gamma(torch.tensor(a).double(), torch.tensor(b).double())
        return -gamma.log_prob(g.exp())

    def exact(g):
        return negative_log(*GAMMA_AT_ZERO, g[:1]).sum() + negative_log(*GAMMA, g[1:]).sum()

    other = log_precisions + torch.tensor([0.3, -0.2, 0.1])
    difference = hyper_prior(other) - hyper_prior(log_precisions)
    torch.testing.assert_close(difference, exact(other) - exact(log_precisions))


def test_sws_learns_the_mixture_beside_the_weights(mnist):
    model = network()
    config = TrainConfig("adam", lr=5e-4, weight_decay=0, iterations=20, lr_drops=(), batch_size=50)
    sharing = Sharing(weights_of(model), images=1000)
    before = [p.detach().clone() for p in sharing.parameters()]
    train(model, mnist, config, hooks=sharing)
    assert all(not torch.equal(a, b) for a, b in zip(before, sharing.parameters(), strict=True))
    mixture = sharing.mixture()
    assert float(mixture.log_shares.exp().sum()) == pytest.approx(1)
    assert mixture.means[0] == 0


def true_kl(alpha):
    """KL(N(theta, alpha theta^2) || log-uniform), which tends to 0, by numerical integration."""
    z = np.linspace(-12, 12, 400_001)  # the midpoints miss the singularity of the logarithm
    middle = (z[1:] + z[:-1]) / 2
    density = np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
    expected = np.sum(np.log(np.abs(1 + math.sqrt(alpha) * middle)) * density) * (z[1] - z[0])
    return float(expected - 0.5 * math.log(alpha) + (np.euler_gamma + math.log(2)) / 2)


@pytest.mark.parametrize("value", [-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
def test_svd_kl_agrees_with_numerical_integration(value):
    assert float(kl(torch.tensor(value))) == pytest.approx(true_kl(math.exp(value)), abs=0.012)


def test_svd_noise_has_the_variance_of_noisy_weights():
    for layer, x in [
        (nn.Linear(6, 4), torch.randn(3, 6)),
        (nn.Conv2d(2, 4, 3, padding=1, groups=2), torch.randn(2, 2, 5, 5)),
        (nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last), torch.randn(2, 2, 5, 5)),
    ]:
        noise = Noise(layer, {"weight": layer.weight}, images=100, steps=10)
        with torch.no_grad():
            noise.log_sigma2[0].uniform_(-3, -1)
        with noise.attached(layer), torch.no_grad():
            drawn = layer(x.repeat(4000, *[1] * (x.ndim - 1))).unflatten(0, (4000, len(x)))
            mean = layer.eval()(x)
        cut = columns(layer, x)
        sigma2 = noise.log_sigma2[0].detach().exp().reshape(cut.shape[1], -1, cut.shape[2])
        weights = sigma2.sqrt() * torch.randn(4000, *sigma2.shape)
        sampled = torch.einsum("sgok,bgkl->sbgol", weights, cut)
        assert (drawn.mean(0) - mean).abs().max() < 0.2
        ratio = rows(layer, drawn.var(0)) / sampled.var(0)
        assert ((ratio - 1).abs() < 0.2).all()
        assert torch.equal(layer.train()(x), layer(x))  # no hook is left behind


def test_svd_objective_rises_to_the_whole_kl_and_prunes_noise():
    model = nn.Linear(2, 1)
    noise = Noise(model, {"weight": model.weight}, images=50, steps=1000)
    model.weight.data = torch.tensor([[1.0, 1e-3]])
    assert noise.extra_loss(0) is None
    whole = kl(log_alpha(model.weight, noise.log_sigma2[0])).sum() / 50
    torch.testing.assert_close(noise.extra_loss(500), whole)
    assert 0 < float(noise.extra_loss(60)) < float(whole)
    assert noise.weights_to_keep()["weight"].tolist() == [[1.0, 0.0]]
    assert noise.rate(0) == noise.rate(500) == 1.0
    assert noise.rate(750) == 0.5
