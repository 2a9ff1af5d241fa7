"""One whole run in a folder. The command line and the experiments call these functions."""

from snip.models.resolve import OWN, draw_network, resolve_model
from snip.runs.config import METHODS, PROTOCOLS, RunConfig
from snip.runs.guessing import chance_note
from snip.runs.result import RunResult
from snip.runs.run import draw, prepare, prune_drawn, prune_network, run, scoring_batches
from snip.runs.seeds import seeds_of

__all__ = [
    "METHODS",
    "OWN",
    "PROTOCOLS",
    "RunConfig",
    "RunResult",
    "chance_note",
    "draw",
    "draw_network",
    "prepare",
    "prune_drawn",
    "prune_network",
    "resolve_model",
    "run",
    "scoring_batches",
    "seeds_of",
]
