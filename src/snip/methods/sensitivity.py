"""SNIP and its relatives: scores by how much the loss changes when a connection is removed."""

from __future__ import annotations

from typing import Any

from torch import nn

from snip.methods.kinds import ANYHOW, AtInitialisation, Needs, exponential, halving
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores, accumulated_gradients
from snip.scoring.settings import Scoring

ROUNDS = 60  # of FORCE and iterative SNIP, as in the authors' command
STEPS = 5  # of SNIP-it, after the first, which is at 0.5, and before the last


def connection_sensitivity(
    model: nn.Module | Network,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """|dL/dc| at c = 1 (Eq. 4-6), which is |w * dL/dw|, by name; the model is left as found."""
    return accumulated_gradients(
        model, batches, loss_fn, params=params, scoring=scoring, sensitivity=True
    )


def weight_gradient(
    model: nn.Module | Network,
    batches: Any,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """|dL/dw| per parameter name, which the paper's appendix compares with |w * dL/dw|."""
    gradients = accumulated_gradients(model, batches, loss_fn, params=params, scoring=scoring)
    return {name: gradient.abs_() for name, gradient in gradients.items()}


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


SNIP = AtInitialisation(connection_sensitivity, Needs("connection sensitivity"), shared=ANYHOW)

WEIGHT_GRADIENT = AtInitialisation(weight_gradient, Needs("gradient of the loss"), shared=ANYHOW)

# SNIP in rounds, in which removed connections may come back (de Jorge et al. 2021).
FORCE = AtInitialisation(
    force,
    Needs("connection sensitivity", prunings=str(ROUNDS), hyperparameters=True),
    rounds=exponential(ROUNDS),
    returns=True,
    shared=ANYHOW,
)

# Iterative SNIP: what a round removes stays removed (de Jorge et al. 2021). Each round scores the
# network that is left, so that a connection's sensitivity is that in the network it will train in.
ITER_SNIP = AtInitialisation(
    connection_sensitivity,
    Needs("connection sensitivity", prunings=str(ROUNDS), hyperparameters=True),
    rounds=exponential(ROUNDS),
    shared=ANYHOW,
)

# SNIP-it: a few rounds that halve the way to the sparsity (Verdenius et al. 2020). Its elasticity
# |w * dL/dw| / L divides every score by the same loss, which changes no ranking. What a round
# removes stays removed. The authors also prune during training; this is "before training".
SNIP_IT = AtInitialisation(
    connection_sensitivity,
    Needs("connection sensitivity", prunings=str(STEPS + 2), hyperparameters=True),
    rounds=halving(STEPS),
    shared=ANYHOW,
)
