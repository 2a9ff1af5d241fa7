"""Ranks connections by |dL/dw|, which the paper's appendix compares with its own scores."""

from __future__ import annotations

from typing import Any

from torch import nn

from snip.methods.kinds import ANYHOW, AtInitialisation, Needs
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores, accumulated_gradients
from snip.scoring.settings import Scoring


def weight_gradient(
    model: nn.Module | Network,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """|dL/dw| per parameter name, where SNIP has |w * dL/dw|; the model is left as found."""
    gradients = accumulated_gradients(model, batches, loss_fn, params=params, scoring=scoring)
    return {name: gradient.abs_() for name, gradient in gradients.items()}


WEIGHT_GRADIENT = AtInitialisation(weight_gradient, Needs("gradient of the loss"), shared=ANYHOW)
