"""ERK: random pruning at Erdos-Renyi-kernel densities (Evci et al. 2020, "Rigging the lottery").

A layer's density is proportional to the sum of its dimensions over their product, so that small
layers stay denser than large ones (`selection/budgets.py` has the densities).
"""

from __future__ import annotations

from snip.methods.kinds import ANYHOW, NOTHING, AtInitialisation, Needs
from snip.methods.random import random_scores

ERK = AtInitialisation(random_scores, Needs("none"), scope="erk", reads=NOTHING, shared=ANYHOW)
