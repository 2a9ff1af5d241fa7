"""Random streams that are pure functions of their key, so a resumed run repeats exactly."""

from __future__ import annotations

import numpy as np

from snip.common.errors import InputError, KindError

# Each is the first word of its keys, so that no two uses ever share a stream.
VALIDATION, ORDER, AUGMENT, LABELS = 1, 2, 3, 4


def stream(kind: int, seed: int, *key: int) -> np.random.Generator:
    """The generator of one use (`kind`) at one place (`key`, such as epoch and batch)."""
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise KindError(f"seed is {seed!r}: pass a whole number.")
    if seed < 0:
        raise InputError(f"seed is {seed}: pass a whole number of 0 or more.")
    return np.random.default_rng((kind, int(seed), *key))
