"""Baselines that look at no data: random pruning, ERK densities, and magnitude."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from snip.distributed.shards import part, sharded_like
from snip.methods.kinds import ANYHOW, NOTHING, WEIGHTS, AtInitialisation, Needs
from snip.network.network import Network
from snip.network.parameters import Predicate
from snip.scoring.batches import LossFn
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring


def random_scores(
    model: nn.Module | Network,
    batches: Any = None,
    loss_fn: LossFn | None = None,
    *,
    params: Predicate | None = None,
    scoring: Scoring = Scoring(),
) -> Scores:
    """Give each connection a uniform random number, whatever the weights and the data.

    `torch.manual_seed` before the call repeats them, on every device; a second call draws others.
    """
    generator = fresh_generator()
    # Processes that share a model all draw what the first of them would.
    network = Network.of(model, params)
    generator.manual_seed(network.ranks.broadcast(generator.initial_seed()))
    return {name: _drawn(p, generator) for name, p in network.require_competing().items()}


def _drawn(parameter: nn.Parameter, generator: torch.Generator) -> torch.Tensor:
    """Draw the whole tensor; only this rank's shard of it stays in memory."""
    whole = torch.rand(parameter.shape, generator=generator)
    own = part(whole, parameter)
    return sharded_like(own.clone() if own is not whole else whole, parameter)


def fresh_generator() -> torch.Generator:
    """Return a generator whose seed is drawn from torch's global one.

    Drawn from the global one itself, the scores of a network that was drawn from the same seed
    would be its weights' own random numbers, and random pruning would keep the largest weights.
    """
    return torch.Generator().manual_seed(int(torch.randint(1 << 62, ())))


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


RANDOM = AtInitialisation(random_scores, Needs("none"), reads=NOTHING, shared=ANYHOW)

# Random pruning at Erdos-Renyi-kernel densities (Evci et al. 2020, "Rigging the lottery"), which
# keep small layers denser than large ones: `selection/budgets.py` has them.
ERK = AtInitialisation(random_scores, Needs("none"), scope="erk", reads=NOTHING, shared=ANYHOW)

MAGNITUDE = AtInitialisation(magnitude, Needs("magnitude"), reads=WEIGHTS, shared=ANYHOW)
