"""The order in which a dense network's images lie in memory, which decides its speed on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def channels_last(model: nn.Module) -> Iterator[None]:
    """Inside the block 2-d convolutions compute with channels innermost, nearly twice as fast.

    torch takes the order from the weights. What is computed is the same but for rounding. A choice
    by timing would make other bits in every run, so there is none.
    """
    changed = [p for p in _convolutions(model) if p.is_contiguous()]
    _lay_out(changed, torch.channels_last)
    try:
        yield
    finally:
        _lay_out(changed, torch.contiguous_format)


def _convolutions(model: nn.Module) -> list[nn.Parameter]:
    """The weights of 2-d convolutions on the CPU."""
    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    found = (m._parameters.get("weight") for m in model.modules() if isinstance(m, kinds))
    return [p for p in found if p is not None and p.device.type == "cpu"]


def _lay_out(parameters: list[nn.Parameter], order: torch.memory_format) -> None:
    for parameter in parameters:
        # Not by `contiguous`, which leaves weights of one input channel alone: they are in both
        # orders at once, and torch would go by their strides.
        parameter.data = parameter.data.clone(memory_format=order)
