"""SVD (Molchanov et al. 2017): sparse variational dropout learns how much noise a weight stands.

Every weight is a Gaussian N(theta, sigma^2) under a log-uniform prior. Weights whose noise is large
beside their mean, alpha = sigma^2 / theta^2, carry no information and go.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.masks import Masks
from snip.methods.course import Course
from snip.methods.kinds import DuringTraining, Needs
from snip.methods.layer_matrices import (
    MATRICES,
    layers_of,
    observed,
    parameter_of,
    require_called,
)
from snip.network.untouched import undisturbed
from snip.training.hooks import Hooks
from snip.training.phases import steady
from snip.training.state import Weights

SHARE = 1.0
LR = 1e-3  # of Adam
FIRST_LOG_SIGMA2 = -8.0  # the authors' advice for a network that is trained already
LARGEST = 3.0  # of log alpha: above, a weight is noise for 95% and more
CLIP = 8.0
WARM_UP = (0.025, 0.1)  # of the training: the KL term's weight rises from 0 to 1 in between
K1, K2, K3 = 0.63576, 1.87320, 1.48695  # of the approximation of the KL


def log_alpha(theta: torch.Tensor, log_sigma2: torch.Tensor) -> torch.Tensor:
    """log(sigma^2 / theta^2)."""
    return log_sigma2 - torch.log(theta.square() + 1e-8)


def kl(log_alpha: torch.Tensor) -> torch.Tensor:
    """KL(q(w) || log-uniform prior) but for a constant, by the authors' approximation (Eq. 14)."""
    log_alpha = log_alpha.clamp(-CLIP, CLIP)
    return K1 - K1 * torch.sigmoid(K2 + K3 * log_alpha) + 0.5 * F.softplus(-log_alpha)


class Noise(Hooks):
    """log sigma^2 of every weight, the noise of the layers' outputs, and the KL term."""

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[str, nn.Parameter],
        *,
        images: int,
        steps: int,
    ) -> None:
        super().__init__()
        self.weights, self.images, self.steps = dict(weights), images, steps
        self.layers = layers_of(model, weights)
        self.log_sigma2 = nn.ParameterList(
            torch.full_like(w, FIRST_LOG_SIGMA2, requires_grad=True) for w in weights.values()
        )

    def settings(self) -> dict[str, Any]:
        """N: it weighs the data against the prior."""
        return {"svd.images": self.images}

    def groups(self) -> list[dict[str, Any]]:
        """One group, trained at the same rate as the weights."""
        return [{"params": list(self.log_sigma2)}]

    def rate(self, iteration: int) -> float:
        """Return the full rate for half of the training, then fall linearly to zero."""
        return min(1.0, 2 * (1 - iteration / self.steps))

    @contextmanager
    def attached(self, model: nn.Module) -> Iterator[None]:
        """Add noise to the outputs of the layers while they train."""
        own = dict(zip(self.weights, self.log_sigma2, strict=True))

        def noisy(name: str, inputs: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
            return _noisy(self.layers[name], own[parameter_of(name, "weight")], inputs, output)

        with observed(self.layers, noisy):
            yield

    def log_alphas(self) -> dict[str, torch.Tensor]:
        """log alpha by parameter name."""
        pairs = zip(self.weights.items(), self.log_sigma2, strict=True)
        return {name: log_alpha(weight, log_sigma2) for (name, weight), log_sigma2 in pairs}

    def extra_loss(self, iteration: int) -> torch.Tensor | None:
        """Return KL / N beside the mean loss of an image, from none at first to all of it."""
        begin, end = (part * self.steps for part in WARM_UP)
        weight = min(1.0, max(0.0, (iteration - begin) / (end - begin)))
        if weight == 0:
            return None
        total = torch.stack([kl(value).sum() for value in self.log_alphas().values()]).sum()
        return weight / self.images * total

    @torch.no_grad()
    def weights_to_keep(self) -> Weights:
        """Return theta where it is more than noise."""
        alphas = self.log_alphas()
        return {n: w.detach() * (alphas[n] < LARGEST) for n, w in self.weights.items()}


def _noisy(
    layer: nn.Module, log_sigma2: torch.Tensor, inputs: torch.Tensor, output: torch.Tensor
) -> torch.Tensor:
    """Local reparametrisation: noise of variance layer(x^2, sigma^2), drawn per output."""
    if not layer.training:
        return output
    squares, sigma2 = inputs.square(), log_sigma2.exp()
    if isinstance(layer, nn.Linear):
        variance = F.linear(squares, sigma2)
    else:
        variance = layer._conv_forward(squares, sigma2, None)  # type: ignore[operator]
    return output + (variance + 1e-8).sqrt() * _drawn_like(output)


def _drawn_like(output: torch.Tensor) -> torch.Tensor:
    """Draw Gaussian noise in the order of memory: in any other torch draws one by one, slowly."""
    noise = torch.empty_like(output)
    noise.as_strided((noise.numel(),), (1,)).normal_()
    return noise


@torch.no_grad()
def _require_called(course: Course) -> None:
    """Raise if the network computes without calling one of its layers, which gets no noise."""
    layers, called = layers_of(course.model, course.weights), set[str]()
    with undisturbed(course.model):
        course.model.eval()
        with observed(layers, lambda name, _inputs, _output: called.add(name)):
            course.model(course.batches(1)[0][0])
    require_called("svd", layers, course.weights, called)


def prune(course: Course) -> Masks:
    """Train once with noise, and keep the weights of the smallest alpha."""
    _require_called(course)
    training = steady(course.config.with_optimizer("adam"), SHARE)
    training = dataclasses.replace(training, lr=LR, weight_decay=0.0)
    noise = Noise(course.model, course.weights, images=course.images, steps=training.iterations)
    course.phases.train("noise", training, hooks=noise)
    with torch.no_grad():
        alphas = noise.log_alphas()
    natural = sum(int((value < LARGEST).sum()) for value in alphas.values())
    return course.trimmed({name: -value for name, value in alphas.items()}, natural)


SVD = DuringTraining(
    prune,
    Needs("Bayesian", pretraining=True, prunings="soft", hyperparameters=True, objective=True),
    layers=MATRICES,
)
