"""Iterative SNIP: SNIP in rounds; what a round removes stays removed (de Jorge et al. 2021).

Each round scores the network that is left, so that the sensitivity of a connection is that in the
network it will be trained in. The number of rounds is that of the authors' command.
"""

from __future__ import annotations

from snip.methods.kinds import ANYHOW, AtInitialisation, Needs
from snip.methods.schedules import exponential
from snip.methods.snip import connection_sensitivity

ROUNDS = 60

ITER_SNIP = AtInitialisation(
    connection_sensitivity,
    Needs("connection sensitivity", prunings=str(ROUNDS), hyperparameters=True),
    rounds=exponential(ROUNDS),
    shared=ANYHOW,
)
