"""Device of a model, and the devices that draw random numbers for it."""

from __future__ import annotations

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter is; the CPU if it has none."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def device_off_cpu(model: nn.Module) -> torch.device | None:
    """First device of the model's parameters that is not the CPU; None if all are there."""
    return next((p.device for p in model.parameters() if p.device.type != "cpu"), None)


def drawing_devices(model: nn.Module) -> list[torch.device]:
    """The model's devices with random generators of their own, such as GPUs; not the CPU."""
    found = {parameter.device for parameter in model.parameters()}
    return sorted(filter(draws, found), key=str)


def draws(device: torch.device) -> bool:
    """True if a device has a random generator beside the CPU's."""
    return device.type != "cpu" and hasattr(getattr(torch, device.type, None), "get_rng_state")
