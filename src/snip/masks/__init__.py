"""Which connections exist, where that was decided, and how pruned weights stay zero."""

from snip.masks.empty import empty_layers, nearly_empty_layers
from snip.masks.masks import Masks, held_masks, release
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
