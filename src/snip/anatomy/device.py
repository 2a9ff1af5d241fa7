"""Where a model is."""

from __future__ import annotations

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is; the CPU if it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
