"""LWC (Han et al. 2015): in rounds, remove the smallest weights and train what is left."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from snip.masks import Masks
from snip.methods.course import Course, settings_of
from snip.methods.kinds import DuringTraining, Needs, exponential
from snip.scoring.gradients import Scores
from snip.training.phases import steady

ROUNDS = 5
SHARE, LR_SCALE = 0.15, 0.1  # of the first training; a tenth of the rate is the paper's
ROUNDING = 1e-6  # of |w|: a deviation below is that of equal weights whose mean was rounded


def thresholds(weights: Mapping[str, torch.Tensor], qualities: Mapping[str, float]) -> Scores:
    """q_l std(w_l): below this, times one factor for all layers, a weight is pruned."""
    return {name: qualities[name] * spread(_wide(weight)) for name, weight in weights.items()}


def spread(weight: torch.Tensor) -> torch.Tensor:
    """The deviation of a layer's weights; the mean of |w| where all are equal, or there is one."""
    size = weight.abs().mean()
    deviation = weight.std() if weight.numel() > 1 else torch.zeros_like(size)
    return torch.where(deviation > ROUNDING * size, deviation, size)


def in_thresholds(weights: Mapping[str, torch.Tensor], unit: Mapping[str, torch.Tensor]) -> Scores:
    """|w| in units of its layer's threshold: ranking by it is finding the factor for a budget."""
    tiny = torch.finfo(torch.float32).tiny  # a layer that is zero all over has no threshold
    return {n: _wide(weight).abs() / unit[n].clamp(min=tiny) for n, weight in weights.items()}


def _wide(weight: torch.Tensor) -> torch.Tensor:
    """In float32 at least: of half precision the quotients would soon be infinite."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def prune(course: Course) -> Masks:
    """Rounds of equal factors, with the deviations of the dense network.

    The deviation of a pruned layer, which is full of zeros, would shrink from round to round.
    """
    qualities = {name: settings_of(course.model, name).quality for name in course.weights}
    unit = thresholds(course.values(), qualities)

    def prune_to(sparsity: float) -> Masks:
        return course.keep(in_thresholds(course.values(), unit), sparsity)

    training = steady(course.config, SHARE, lr_scale=LR_SCALE)
    return course.in_rounds(prune_to, exponential(ROUNDS), training)


LWC = DuringTraining(
    prune,
    Needs("magnitude", pretraining=True, prunings="many", hyperparameters=True, architecture=True),
    norms=True,
)
