"""SWS (Ullrich et al. 2017): weights gather around a few values, and most of them around zero.

A mixture of Gaussians, one of them at zero with nearly all of the mass, is the weights' prior and
is learnt with them. What belongs to the one at zero goes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from snip.masks import Masks
from snip.methods.course import Course, flattened, views
from snip.methods.kinds import DuringTraining, Needs
from snip.training.hooks import Hooks
from snip.training.phases import steady
from snip.training.state import Weights

SHARE = 0.6
COMPONENTS = 16  # beside the one at zero
AT_ZERO = 0.999  # the share of the one at zero, which is not learnt
FIRST_STD = 0.25
TAU = 0.003  # the prior's weight; this and what follows is the authors' tutorial
LR = 5e-4  # Adam's, of the weights
LR_MEANS, LR_PRECISIONS, LR_SHARES = 1e-4, 3e-3, 3e-3
# Gamma priors (a, b) of the precisions, at zero and elsewhere: both prefer a deviation of 0.02.
# Without them components collapse, and weights are left behind.
GAMMA_AT_ZERO, GAMMA = (5000.0, 2.0), (250.0, 0.1)

CHUNK_WEIGHTS = 1 << 13  # weights at a time: all components of a chunk stay in the cache
HALF_LOG_2PI = math.log(2 * math.pi) / 2
MIN_LOG = -80.0  # below it exp makes denormal numbers, which take 30 times as long
SAME_DIVERGENCE = 1e-10  # components with a smaller divergence are one


class Mixture(NamedTuple):
    """Mean of each Gaussian, and the logarithms of its precision and of its share."""

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
        for begin in range(0, len(weights), CHUNK_WEIGHTS):
            w = weights[begin : begin + CHUNK_WEIGHTS]
            own = powers(w)
            joint = mixture.log_joint(own)
            most = joint.amax(0)
            # Over their sum, these are the responsibilities r_ij.
            share = joint.sub_(most).clamp_(min=MIN_LOG).exp_()
            density = share.sum(0)
            total -= (most + density.log()).sum()
            stiff, toward = pulls @ share / density
            of_weights[begin : begin + CHUNK_WEIGHTS] = stiff * w - toward
            moments += share @ (own / density).T  # sums of r_ij, r_ij w_i and r_ij w_i^2
        ctx.save_for_backward(of_weights, *_of_parts(mixture, moments))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(gradient * outer[0] for gradient in ctx.saved_tensors)


def _of_parts(mixture: Mixture, moments: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of -sum_i log p(w_i) by means, log precisions and log shares."""
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
    """Join components that are practically the same, and put the one nearest to zero there.

    Means and variances are averages by the shares. The component at zero comes first.
    """
    parts = [tuple(float(value) for value in row) for row in torch.stack(mixture).T]
    i = 0
    while i < len(parts):
        j = i + 1
        while j < len(parts):
            two = Mixture(*torch.tensor([parts[i], parts[j]]).double().T)
            if divergence(two, 0, 1) < SAME_DIVERGENCE:
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
    """Mean of each weight's most responsible component, and the log odds against zero's."""
    values, odds = torch.empty_like(weights), torch.empty_like(weights)
    exact = Mixture(*(part.double() for part in mixture))  # near a component, large terms cancel
    for begin in range(0, len(weights), CHUNK_WEIGHTS):
        joint = exact.log_joint(powers(weights[begin : begin + CHUNK_WEIGHTS].double()))
        values[begin : begin + CHUNK_WEIGHTS] = mixture.means[joint.argmax(0)]
        others = joint[1:].amax(0) if len(joint) > 1 else -joint[0]
        odds[begin : begin + CHUNK_WEIGHTS] = others - joint[0]
    return values, odds


class Sharing(Hooks):
    """The mixture and its pull on the weights."""

    def __init__(self, weights: Mapping[str, nn.Parameter], *, images: int) -> None:
        super().__init__()
        self.weights, self.images = dict(weights), images
        flat = flattened(weights)
        low, high = float(flat.min()), float(flat.max())
        first = -2 * math.log(FIRST_STD)
        self.means = nn.Parameter(torch.linspace(low, high, COMPONENTS).to(flat))
        self.log_precisions = nn.Parameter(flat.new_full((COMPONENTS + 1,), first))
        self.share_logits = nn.Parameter(flat.new_zeros(COMPONENTS))

    def settings(self) -> dict[str, Any]:
        """N: it weighs the data against the prior."""
        return {"sws.images": self.images}

    def groups(self) -> list[dict[str, Any]]:
        """Three groups with rates of their own, which decide whether weights gather at all."""
        rates = (LR_MEANS, LR_PRECISIONS, LR_SHARES)
        parts = (self.means, self.log_precisions, self.share_logits)
        return [{"params": [p], "lr_scale": r / LR} for p, r in zip(parts, rates, strict=True)]

    def mixture(self) -> Mixture:
        """Build the mixture: the component at zero first, and shares that add up to one."""
        others = self.share_logits.log_softmax(0) + math.log(1 - AT_ZERO)
        at_zero = others.new_full((1,), math.log(AT_ZERO))
        means = torch.cat([torch.zeros_like(at_zero), self.means])
        return Mixture(means, self.log_precisions, torch.cat([at_zero, others]))

    def extra_loss(self, _iteration: int) -> torch.Tensor:
        """tau / N times -log p(weights, mixture), beside the mean loss of an image."""
        mixture = self.mixture()
        weights = torch.cat([weight.flatten() for weight in self.weights.values()])
        density = NegativeLogDensity.apply(weights, *mixture)
        return TAU / self.images * (density + hyper_prior(mixture.log_precisions))

    @torch.no_grad()
    def answers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Values of the weights after sharing, and their log odds against zero, as flat vectors."""
        mixture = Mixture(*map(torch.detach, self.mixture()))
        return quantised(flattened(self.weights), merged(mixture))

    def weights_to_keep(self) -> Weights:
        """Return the published network: every weight has the value of its component."""
        return views(self.answers()[0], self.weights)


def hyper_prior(log_precisions: torch.Tensor) -> torch.Tensor:
    """-log of the Gamma priors of the precisions, but for constants."""
    a, b = (
        log_precisions.new_tensor([at_zero] + [elsewhere] * (len(log_precisions) - 1))
        for at_zero, elsewhere in zip(GAMMA_AT_ZERO, GAMMA, strict=True)
    )
    return ((1 - a) * log_precisions + b * log_precisions.exp()).sum()


def prune(course: Course) -> Masks:
    """Train once under the prior, and keep the weights with the best odds against zero.

    They keep the values that they were trained to: this compares pruning, not quantisation.
    """
    training = steady(course.config.with_optimizer("adam"), SHARE)
    training = dataclasses.replace(training, lr=LR, weight_decay=0.0)
    sharing = Sharing(course.weights, images=course.images)
    course.phases.train("sharing", training, hooks=sharing)
    values, odds = sharing.answers()
    return course.trimmed(views(odds, course.weights), int(values.count_nonzero()))


SWS = DuringTraining(
    prune,
    Needs("Bayesian", pretraining=True, prunings="soft", hyperparameters=True, objective=True),
)
