"""What was decided, and how zero stays zero."""

from snip.masks.masks import Masks, empty_layers, held_masks, release

__all__ = ["Masks", "empty_layers", "held_masks", "release"]
