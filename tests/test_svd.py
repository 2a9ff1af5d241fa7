"""Sparse variational dropout (SVD) against numerical integration and sampled weights."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from snip.methods.layer_matrices import columns, rows
from snip.methods.svd import Noise, kl, log_alpha


def true_kl(alpha: float) -> float:
    """KL(N(theta, alpha theta^2) || log-uniform), which tends to 0, by numerical integration."""
    z = np.linspace(-12, 12, 400_001)  # the midpoints miss the singularity of the logarithm
    middle = (z[1:] + z[:-1]) / 2
    density = np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi)
    expected = np.sum(np.log(np.abs(1 + math.sqrt(alpha) * middle)) * density) * (z[1] - z[0])
    return float(expected - 0.5 * math.log(alpha) + (np.euler_gamma + math.log(2)) / 2)


@pytest.mark.parametrize("value", [-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
def test_svd_kl_agrees_with_numerical_integration(value: float) -> None:
    assert float(kl(torch.tensor(value))) == pytest.approx(true_kl(math.exp(value)), abs=0.012)


def test_svd_noise_has_the_variance_of_noisy_weights() -> None:
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


def test_svd_objective_rises_to_the_whole_kl_and_prunes_noise() -> None:
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
