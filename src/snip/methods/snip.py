"""SNIP: how much the loss changes when a connection is removed (Eq. 4-6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.methods.kinds import ANYHOW, AtInitialisation, Needs
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores, accumulated_gradients
from snip.scoring.settings import Scoring


def connection_sensitivity(
    model: nn.Module | Network,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """|dL/dc| at c = 1, which is |w * dL/dw|, per parameter name; the model is left as found."""
    return accumulated_gradients(
        model, batches, loss_fn, params=params, scoring=scoring, sensitivity=True
    )


SNIP = AtInitialisation(connection_sensitivity, Needs("connection sensitivity"), shared=ANYHOW)


def normalize(scores: Mapping[str, torch.Tensor]) -> Scores:
    """Eq. 6: s = |g| / sum of |g|. The ranking does not change; `s` is for people to read."""
    total = sum(float(score.sum(dtype=torch.float64)) for score in scores.values())
    if total == 0:
        raise InputError("every score is zero: there is nothing to divide by.")
    return {name: score / total for name, score in scores.items()}
