"""A seed for each random part of a run, all from the one that the run has."""

from __future__ import annotations

import hashlib

from snip.runs.config import RunConfig


def seeds_of(config: RunConfig) -> dict[str, int]:
    """A seed for each random part. Both protocols score the same draw on the same batch."""
    scored = config.seed
    return {
        "run": config.seed,
        "scored_draw": scored,
        "trained_draw": scored if config.protocol == "train-scored" else derived(scored, "redraw"),
        "scoring_batch": derived(config.seed, "scoring batch"),
        "training": config.seed,  # order of the data, augmentation, dropout
    }


def derived(seed: int, purpose: str) -> int:
    """A seed for one purpose, derived from the run's; seeds of different purposes are unrelated."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed}".encode()).digest()[:6], "big")
