"""SWS (Ullrich et al. 2017): weights gather around a few values, and most of them around zero.

A mixture of Gaussians, one of them at zero with nearly all of the mass, is the weights' prior and
is learnt with them. What belongs to the one at zero goes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snip.masks import Masks
from snip.methods.course import Course
from snip.methods.flat import flattened, views
from snip.methods.kinds import DuringTraining, Needs
from snip.methods.mixture import Mixture, NegativeLogDensity, merged, quantised
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
        """N, which weighs the data against the prior."""
        return {"sws.images": self.images}

    def groups(self) -> list[dict[str, Any]]:
        """Three groups with rates of their own: they decide whether weights gather at all."""
        rates = (LR_MEANS, LR_PRECISIONS, LR_SHARES)
        parts = (self.means, self.log_precisions, self.share_logits)
        return [{"params": [p], "lr_scale": r / LR} for p, r in zip(parts, rates, strict=True)]

    def mixture(self) -> Mixture:
        """With the component at zero as the first, and shares that add up to one."""
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
        """The weights' values after sharing, and the log odds against zero, as flat vectors."""
        return quantised(
            flattened(self.weights), merged(Mixture(*map(torch.detach, self.mixture())))
        )

    def weights_to_keep(self) -> Weights:
        """The published network: every weight has the value of its component."""
        return views(self.answers()[0], self.weights)


def hyper_prior(log_precisions: torch.Tensor) -> torch.Tensor:
    """-log of the Gamma priors of the precisions, but for constants."""
    a, b = (
        log_precisions.new_tensor([at_zero] + [elsewhere] * (len(log_precisions) - 1))
        for at_zero, elsewhere in zip(GAMMA_AT_ZERO, GAMMA, strict=True)
    )
    return ((1 - a) * log_precisions + b * log_precisions.exp()).sum()


def prune(course: Course) -> Masks:
    """One training under the prior; the weights with the best odds against zero stay.

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
