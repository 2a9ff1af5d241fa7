"""Masks of the connections that exist, their provenance, and hooks that hold zeros."""

from snip.masks.masks import Masks, empty_layers, held_masks, nearly_empty_layers, release
from snip.masks.provenance import Provenance, versions

__all__ = [
    "Masks",
    "Provenance",
    "empty_layers",
    "held_masks",
    "nearly_empty_layers",
    "release",
    "versions",
]
