"""A mixture of Gaussians over weights, one of which is fixed at zero: density, merging, answers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

CHUNK = 1 << 12  # weights at a time: all components of a chunk stay in the cache
HALF_LOG_2PI = math.log(2 * math.pi) / 2
SAME = 1e-10  # components with a smaller divergence are one


class Mixture(NamedTuple):
    """Of each component: its mean, the logarithms of its precision and of its share."""

    means: torch.Tensor
    log_precisions: torch.Tensor
    log_shares: torch.Tensor

    def log_joint(self, weights: torch.Tensor) -> torch.Tensor:
        """log(pi_j N(w_i; mu_j, sigma_j^2)), [components, weights]."""
        constants = self.log_shares + self.log_precisions / 2 - HALF_LOG_2PI
        squares = (weights[None] - self.means[:, None]).square()
        return constants[:, None] - self.log_precisions.exp()[:, None] / 2 * squares


class NegativeLogDensity(torch.autograd.Function):
    """-sum_i log p(w_i), whose gradients come from one pass with the responsibilities."""

    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        mixture = Mixture(*parts)
        precisions = mixture.log_precisions.exp()[:, None]
        total = weights.new_zeros(())
        of_weights = torch.empty_like(weights)
        of_parts = [torch.zeros_like(part) for part in parts]
        for begin in range(0, len(weights), CHUNK):
            w = weights[begin : begin + CHUNK]
            joint = mixture.log_joint(w)
            most = joint.amax(0)
            share = joint.sub_(most).exp_()
            density = share.sum(0)
            share /= density  # the responsibilities r_ij
            total -= (most + density.log()).sum()
            away = w[None] - mixture.means[:, None]
            pull = share * precisions * away
            of_weights[begin : begin + CHUNK] = pull.sum(0)
            of_parts[0] -= pull.sum(1)
            of_parts[1] -= (share.sum(1) - pull.mul_(away).sum(1)) / 2
            of_parts[2] -= share.sum(1)
        ctx.save_for_backward(of_weights, *of_parts)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(gradient * outer[0] for gradient in ctx.saved_tensors)


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
    return Mixture(*torch.tensor(parts, dtype=mixture.means.dtype).T)


def _joined(one: tuple[float, ...], two: tuple[float, ...]) -> tuple[float, float, float]:
    (mu_1, g_1, share_1), (mu_2, g_2, share_2) = one, two
    a, b = math.exp(share_1), math.exp(share_2)
    variance = (a * math.exp(-g_1) + b * math.exp(-g_2)) / (a + b)
    return (a * mu_1 + b * mu_2) / (a + b), -math.log(variance), math.log(a + b)


def quantised(weights: torch.Tensor, mixture: Mixture) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of each weight's most responsible component, and the log odds against zero's."""
    values, odds = torch.empty_like(weights), torch.empty_like(weights)
    for begin in range(0, len(weights), CHUNK):
        joint = mixture.log_joint(weights[begin : begin + CHUNK])
        values[begin : begin + CHUNK] = mixture.means[joint.argmax(0)]
        others = joint[1:].amax(0) if len(joint) > 1 else -joint[0]
        odds[begin : begin + CHUNK] = others - joint[0]
    return values, odds
