"""FORCE: SNIP in rounds, in which removed connections may come back (de Jorge et al. 2021)."""

from __future__ import annotations

from typing import Any

from torch import nn

from snip.methods.kinds import ANYHOW, AtInitialisation, Needs
from snip.methods.schedules import exponential
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores, accumulated_gradients
from snip.scoring.settings import Scoring

ROUNDS = 60  # as in the authors' command


def force(
    model: nn.Module | Network,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
    dense: Scores | None = None,
) -> Scores:
    """|dL/dc| at c = the model's masks: |w * dL/d(c w)|, with the weights w before any pruning.

    The gradient is that of the pruned network and is not masked, so that a removed connection
    scores as much as it would move the loss if it came back. `dense` has the weights w by name;
    without it they are the model's own, and the score is SNIP's.
    """
    network = Network.of(model, params)
    weights = dense or network.require_competing()
    gradients = accumulated_gradients(network, batches, loss_fn, params=None, scoring=scoring)
    return {name: g.mul_(weights[name].detach()).abs_() for name, g in gradients.items()}


FORCE = AtInitialisation(
    force,
    Needs("connection sensitivity", prunings=str(ROUNDS), hyperparameters=True),
    rounds=exponential(ROUNDS),
    returns=True,
    shared=ANYHOW,
)
