"""SNIP-it: SNIP in a few rounds that halve the way to the sparsity (Verdenius et al. 2020).

Its elasticity |w * dL/dw| / L divides every score by the same loss, which changes no ranking. What
a round removes stays removed. The authors also prune during training; this is "before training".
"""

from __future__ import annotations

from snip.methods.kinds import ANYHOW, AtInitialisation, Needs
from snip.methods.schedules import halving
from snip.methods.snip import connection_sensitivity

STEPS = 5  # after the first, which is at 0.5, and before the last

SNIP_IT = AtInitialisation(
    connection_sensitivity,
    Needs("connection sensitivity", prunings=str(STEPS + 2), hyperparameters=True),
    rounds=halving(STEPS),
    shared=ANYHOW,
)
