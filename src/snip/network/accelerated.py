"""The mark of a network that `snip.accelerate` made, for rooms that must not know the engine."""

from __future__ import annotations

from typing import Any

# Where the code of a converted network finds the tensors that the user's forward makes itself.
CONSTANTS = "snip_conversion.constants"


class Accelerated:
    """A base of every accelerated network's class."""

    snip_conversion: Any  # what the converter left on the network (`engine.accelerated.Conversion`)
