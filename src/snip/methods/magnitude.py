"""Magnitude: the largest weights stay, as they were drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.methods.kinds import ANYHOW, WEIGHTS, AtInitialisation, Needs
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring


def magnitude(
    model: nn.Module | Network,
    batches: Any = None,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """|w| per parameter name. In one ranking, layers with many inputs lose the most."""
    weights = Network.of(model, params).require_competing()
    return {
        name: weight.detach().to(torch.promote_types(weight.dtype, torch.float32)).abs()
        for name, weight in weights.items()
    }


MAGNITUDE = AtInitialisation(magnitude, Needs("magnitude"), reads=WEIGHTS, shared=ANYHOW)
