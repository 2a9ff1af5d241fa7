"""One whole run in a folder: the command line and the experiments are made of these."""

from snip.runs.config import METHODS, OWN, PROTOCOLS, RunConfig
from snip.runs.network import draw_network, resolve_model
from snip.runs.result import RunResult
from snip.runs.run import prepare, prune_network, run, scoring_batches, seeds_of

__all__ = [
    "METHODS",
    "OWN",
    "PROTOCOLS",
    "RunConfig",
    "RunResult",
    "draw_network",
    "prepare",
    "prune_network",
    "resolve_model",
    "run",
    "scoring_batches",
    "seeds_of",
]
