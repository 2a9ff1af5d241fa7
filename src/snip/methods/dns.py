"""DNS (Guo et al. 2016): weights are cut when they get small and spliced in again when they grow.

The network computes with w * mask, but its gradient is applied to all of w: a connection that was
cut by mistake grows until it is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from snip.masks import Masks
from snip.methods.course import Course, settings_of, views
from snip.methods.kinds import DuringTraining, Needs
from snip.network.norms import layer_name
from snip.scoring.gradients import Scores
from snip.selection.budgets import layers
from snip.training.hooks import Hooks
from snip.training.phases import steady
from snip.training.state import Weights

SHARE, LR_SCALE = 1.0, 0.5
FADING = 5.0  # gamma times the iterations: at the end every sixth step looks at a layer's masks
CUT, SPLICE = 0.9, 1.1  # times the threshold; in between, a connection stays as it is
# Of the budget, what the thresholds leave of the trained weights: splicing brings others back.
FIRST_KEPT = 0.4


def statistics(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
    """Mean and deviation of |w| by layer, over weights and biases that are not zero."""
    found = {}
    for layer, names in layers(weights).items():
        sizes = torch.cat([weights[name].abs().flatten() for name in names]).double()
        sizes = sizes[sizes > 0]
        some = sizes if len(sizes) else sizes.new_zeros(1)  # of a layer that is zero all over
        found[layer] = (float(some.mean()), float(some.std(correction=0)))
    return found


def thresholds(
    weights: Mapping[str, torch.Tensor], c_rates: Mapping[str, float], kept: float
) -> dict[str, float]:
    """T = max(mu + c sd, 0) by parameter name; c is the layer's c_rate plus one common offset.

    The offset is found by bisection: with it, `kept` weights are above their thresholds.
    """
    known = statistics(weights)

    def at(offset: float) -> dict[str, float]:
        found = {}
        for name in weights:
            mean, deviation = known[layer_name(name)]
            found[name] = max(mean + (c_rates[name] + offset) * deviation, 0.0)
        return found

    low, high = -20.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        limits = at(middle)
        above = sum(int((w.abs() > limits[n]).sum()) for n, w in weights.items())
        low, high = (middle, high) if above > kept else (low, middle)
    return at(high)


def operated(kept: torch.Tensor, weight: torch.Tensor, limit: float) -> torch.Tensor:
    """The mask after one operation: what got small is cut, what grew large is spliced in."""
    size = weight.abs()
    return (kept & (size > CUT * limit)) | (size > SPLICE * limit)


class Surgery(Hooks):
    """The masks, which are looked at more and more rarely, layer by layer at random."""

    def __init__(
        self,
        weights: Mapping[str, torch.nn.Parameter],
        limits: Mapping[str, float],
        steps: int,
        *,
        rule: Mapping[str, Any] | None = None,
    ) -> None:
        """`rule` is what the limits follow from: a run with another rule is another run."""
        super().__init__()
        self.weights, self.gamma, self.rule = dict(weights), FADING / steps, dict(rule or {})
        # Their last digits depend on the number of threads. A checkpoint holds them, so that a run
        # which goes on with another number has the limits that it began with.
        self.limits: torch.Tensor
        chosen = [limits[name] for name in weights]
        self.register_buffer("limits", torch.tensor(chosen, dtype=torch.float64))
        total = sum(weight.numel() for weight in weights.values())
        device = next(iter(weights.values())).device
        self.kept: torch.Tensor
        self.register_buffer("kept", torch.ones(total, dtype=torch.bool, device=device))

    def settings(self) -> dict[str, Any]:
        """Statistics behind the thresholds, and the rate at which the surgery fades."""
        return {"dns.gamma": self.gamma, **{f"dns.{key}": self.rule[key] for key in self.rule}}

    def limit_of(self) -> dict[str, float]:
        """The thresholds by parameter name."""
        return dict(zip(self.weights, self.limits.tolist(), strict=True))

    def masks(self) -> dict[str, torch.Tensor]:
        """The masks by parameter name."""
        return views(self.kept, self.weights)

    @torch.no_grad()
    def before_step(self, iteration: int) -> None:
        """Operate on each layer with a probability that falls."""
        masks, limits = self.masks(), self.limit_of()
        for names in layers(self.weights).values():
            if float(torch.rand(())) < 1 / (1 + self.gamma * iteration):
                for name in names:
                    masks[name].copy_(operated(masks[name], self.weights[name], limits[name]))

    def weights_to_train(self) -> Weights:
        """w * mask; its gradient goes to all of w."""
        return {n: self.weights[n].detach() * mask for n, mask in self.masks().items()}

    weights_to_keep = weights_to_train

    def scores(self) -> Scores:
        """|w| in thresholds; whatever the masks keep is above all that they do not."""
        found, limits = {}, self.limit_of()
        for name, mask in self.masks().items():
            size = self.weights[name].detach().double().abs() / max(limits[name], 1e-30)
            found[name] = size / (1 + size) + mask
        return found


def prune(course: Course) -> Masks:
    """One training with surgery; the masks that it ends with, trimmed to the budget."""
    c_rates = {name: settings_of(course.model, name).c_rate for name in course.weights}
    kept = FIRST_KEPT * course.kept
    limits = thresholds(course.values(), c_rates, kept)
    training = steady(course.config, SHARE, lr_scale=LR_SCALE)
    rule = {"c_rates": repr(c_rates), "kept": kept}
    surgery = Surgery(course.weights, limits, training.iterations, rule=rule)
    course.phases.train("surgery", training, hooks=surgery)
    return course.trimmed(surgery.scores(), int(surgery.kept.count_nonzero()))


DNS = DuringTraining(
    prune,
    Needs("magnitude", pretraining=True, prunings="many", hyperparameters=True, architecture=True),
    biases=True,
)
