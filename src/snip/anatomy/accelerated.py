"""The mark of a network that `snip.accelerate` made, for rooms that must not know the engine."""

from __future__ import annotations

from typing import Any


class Accelerated:
    """A base of every accelerated network's class."""

    snip_conversion: Any  # the engine's `Conversion`: all that the network keeps of it
