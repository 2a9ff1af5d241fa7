"""LC (Carreira-Perpinan and Idelbayev 2018): learn and compress in turn until both agree.

min L(w) such that w = theta and theta has at most kappa weights, by an augmented Lagrangian: the
L step trains w near theta, the C step prunes w to theta, and the penalty mu grows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from snip.masks import Masks
from snip.methods.course import Course, flattened, views
from snip.methods.kinds import DuringTraining, Needs
from snip.selection.topk import keep_top
from snip.training.config import TrainConfig
from snip.training.hooks import Hooks
from snip.training.phases import steady
from snip.training.state import Weights

SHARE = 2.5
STEPS = 30  # L steps; the first is twice as long
PULL, MU_FACTOR = 0.2, 1.25  # the first mu is PULL / (iterations of an L step): 1e-4 of 2,000
LR_FACTOR = 0.95
MET = 0.05  # of |w|: a larger gap at the end is noted
STABLE = 0.5  # the penalty's steps, lr times mu, stay below


def compressed(weights: Mapping[str, torch.Tensor], kept: int) -> Weights:
    """The C step: the `kept` weights of largest size, and zero for the others."""
    masks = keep_top({name: weight.abs() for name, weight in weights.items()}, kept)
    return {name: w * masks[name].to(w.device) for name, w in weights.items()}


class LearningCompression(Hooks):
    """theta and the multipliers lambda; the L step is the training itself."""

    def __init__(
        self, weights: Mapping[str, torch.nn.Parameter], kept: int, training: TrainConfig
    ) -> None:
        super().__init__()
        self.weights, self.kept, self.lr = dict(weights), kept, training.lr
        self.length = training.iterations // (STEPS + 1)  # of an L step
        theta = compressed({name: w.detach() for name, w in weights.items()}, kept)
        self.theta: torch.Tensor
        self.multipliers: torch.Tensor
        self.register_buffer("theta", flattened(theta))
        self.register_buffer("multipliers", torch.zeros_like(self.theta))

    def settings(self) -> dict[str, Any]:
        """The number of weights that stay."""
        return {"lc.kept": self.kept}

    def step_of(self, iteration: int) -> int:
        """k: which L step an iteration belongs to."""
        return max(0, iteration // self.length - 1)

    def mu(self, iteration: int) -> float:
        """The weight of the penalty."""
        return PULL / self.length * MU_FACTOR ** self.step_of(iteration)

    def rate(self, iteration: int) -> float:
        """Falls from L step to L step, and keeps the penalty's steps stable."""
        falling = LR_FACTOR ** self.step_of(iteration)
        return min(falling, STABLE / (self.mu(iteration) * self.lr))

    def extra_loss(self, iteration: int) -> torch.Tensor:
        """mu / 2 |w - theta - lambda / mu|^2, the Lagrangian's terms but for a constant."""
        mu = self.mu(iteration)
        targets = views(self.theta + self.multipliers / mu, self.weights)
        gaps = [(w - targets[name]).square().sum() for name, w in self.weights.items()]
        return mu / 2 * torch.stack(gaps).sum()

    @torch.no_grad()
    def after_step(self, iteration: int, optimizer: torch.optim.Optimizer) -> None:
        """At the end of an L step: the C step, the multipliers, and an optimiser as if fresh."""
        done = iteration + 1
        if done % self.length or done < 2 * self.length:
            return
        mu, w = self.mu(iteration), flattened(self.weights)
        target = views(w - self.multipliers / mu, self.weights)
        self.theta.copy_(flattened(compressed(target, self.kept)))
        self.multipliers.sub_(mu * (w - self.theta))
        # Momentum towards the old theta is wrong. Adam counts its steps: with moments of zero and a
        # count that goes on, its first steps would be up to four times as long as the rate says.
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.zero_()

    def gap(self) -> float:
        """|w - theta| / |w|: how far the constraint is from being met."""
        w = flattened(self.weights)
        return float((w - self.theta).norm() / w.norm())

    def weights_to_keep(self) -> Weights:
        """theta, which has exactly kappa weights."""
        return views(self.theta, self.weights)


def prune(course: Course) -> Masks:
    """All L and C steps in one training; the network gets theta."""
    # The authors' L steps have no decay: the penalty is their only pull.
    training = dataclasses.replace(steady(course.config, SHARE), weight_decay=0.0)
    whole = max(1, training.iterations // (STEPS + 1)) * (STEPS + 1)
    training = dataclasses.replace(training, iterations=whole)
    steps = LearningCompression(course.weights, course.kept, training)
    course.phases.train("learning-compression", training, hooks=steps)
    gap, theta = steps.gap(), steps.weights_to_keep()
    for name, weight in course.weights.items():
        weight.data.copy_(theta[name])
    masks = course.keep({name: value.abs() for name, value in theta.items()})
    if gap <= MET:
        return masks
    note = f"the constraint w = theta was not met: they differ by {gap:.1%} of |w|"
    return masks.with_provenance(note=note)


LC = DuringTraining(
    prune,
    Needs("magnitude", pretraining=True, prunings="many", hyperparameters=True, objective=True),
)
