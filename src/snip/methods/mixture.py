"""A mixture of Gaussians over weights, one of which is fixed at zero: density, merging, answers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

CHUNK = 1 << 13  # weights at a time: all components of a chunk stay in the cache
HALF_LOG_2PI = math.log(2 * math.pi) / 2
LEAST = -80.0  # of a logarithm: below it exp makes denormal numbers, which take 30 times as long
SAME = 1e-10  # components with a smaller divergence are one


class Mixture(NamedTuple):
    """Of each component: its mean, the logarithms of its precision and of its share."""

    means: torch.Tensor
    log_precisions: torch.Tensor
    log_shares: torch.Tensor

    def log_joint(self, powers: torch.Tensor) -> torch.Tensor:
        """log(pi_j N(w_i; mu_j, sigma_j^2)), [components, weights], of the weights' `powers`.

        As polynomials in w, because a product of matrices is faster than passes over its result.
        """
        stiffness = self.log_precisions.exp()
        constants = self.log_shares + self.log_precisions / 2 - HALF_LOG_2PI
        constants = constants - stiffness * self.means.square() / 2
        return torch.stack([constants, stiffness * self.means, -stiffness / 2], 1) @ powers


def powers(weights: torch.Tensor) -> torch.Tensor:
    """1, w and w^2, [3, weights]."""
    return torch.stack([torch.ones_like(weights), weights, weights.square()])


class NegativeLogDensity(torch.autograd.Function):
    """-sum_i log p(w_i), whose gradients come from one pass with the responsibilities."""

    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        mixture = Mixture(*parts)
        stiffness = mixture.log_precisions.exp()
        pulls = torch.stack([stiffness, stiffness * mixture.means])
        total = weights.new_zeros(())
        of_weights = torch.empty_like(weights)
        moments = stiffness.new_zeros(len(stiffness), 3, dtype=torch.float64)
        for begin in range(0, len(weights), CHUNK):
            w = weights[begin : begin + CHUNK]
            own = powers(w)
            joint = mixture.log_joint(own)
            most = joint.amax(0)
            # Over their sum, these are the responsibilities r_ij.
            share = joint.sub_(most).clamp_(min=LEAST).exp_()
            density = share.sum(0)
            total -= (most + density.log()).sum()
            stiff, toward = pulls @ share / density
            of_weights[begin : begin + CHUNK] = stiff * w - toward
            moments += share @ (own / density).T  # sums of r_ij, r_ij w_i and r_ij w_i^2
        ctx.save_for_backward(of_weights, *_of_parts(mixture, moments))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(gradient * outer[0] for gradient in ctx.saved_tensors)


def _of_parts(mixture: Mixture, moments: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of -sum_i log p(w_i) by means, log precisions and log shares."""
    count, first, second = moments.T
    means, stiffness = mixture.means.double(), mixture.log_precisions.double().exp()
    spread = second - 2 * means * first + means.square() * count
    gradients = stiffness * (means * count - first), (stiffness * spread - count) / 2, -count
    return [gradient.to(part) for gradient, part in zip(gradients, mixture, strict=True)]


def divergence(one: Mixture, i: int, j: int) -> float:
    """KL(i || j) of two components."""
    (mu_i, g_i, _), (mu_j, g_j, _) = ([float(part[k]) for part in one] for k in (i, j))
    spread = math.exp(-g_i) + (mu_i - mu_j) ** 2
    return (g_i - g_j + math.exp(g_j) * spread - 1) / 2


def merged(mixture: Mixture) -> Mixture:
    """Components that are practically the same become one; the one nearest to zero is put there.

    Means and variances are averages by the shares. The component at zero comes first.
    """
    parts = [tuple(float(value) for value in row) for row in torch.stack(mixture).T]
    i = 0
    while i < len(parts):
        j = i + 1
        while j < len(parts):
            if divergence(Mixture(*torch.tensor([parts[i], parts[j]]).double().T), 0, 1) < SAME:
                parts[i] = _joined(parts[i], parts.pop(j))
            else:
                j += 1
        i += 1
    parts.sort(key=lambda part: abs(part[0]))
    parts[0] = (0.0, *parts[0][1:])
    return Mixture(*mixture.means.new_tensor(parts).T)


def _joined(one: tuple[float, ...], two: tuple[float, ...]) -> tuple[float, float, float]:
    (mu_1, g_1, share_1), (mu_2, g_2, share_2) = one, two
    a, b = math.exp(share_1), math.exp(share_2)
    variance = (a * math.exp(-g_1) + b * math.exp(-g_2)) / (a + b)
    return (a * mu_1 + b * mu_2) / (a + b), -math.log(variance), math.log(a + b)


def quantised(weights: torch.Tensor, mixture: Mixture) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each weight's most responsible component, and the log odds against zero's."""
    values, odds = torch.empty_like(weights), torch.empty_like(weights)
    exact = Mixture(*(part.double() for part in mixture))  # near a component, large terms cancel
    for begin in range(0, len(weights), CHUNK):
        joint = exact.log_joint(powers(weights[begin : begin + CHUNK].double()))
        values[begin : begin + CHUNK] = mixture.means[joint.argmax(0)]
        others = joint[1:].amax(0) if len(joint) > 1 else -joint[0]
        odds[begin : begin + CHUNK] = others - joint[0]
    return values, odds
