"""Use a model without leaving a trace: mode, buffers and random state come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

BATCH_NORM_MODES = ("eval", "train")


@contextmanager
def restored_modes(model: nn.Module) -> Iterator[None]:
    """Give each module its train or eval mode back on the way out."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restore each module's mode and buffers and torch's random state on the way out."""
    buffers = [
        (module, key, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for key, buffer in module._buffers.items()
    ]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with restored_modes(model), torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for module, key, buffer, value in buffers:
                # A forward may assign a new tensor to a buffer as well as write into the old.
                module._buffers[key] = buffer
                if buffer is not None and value is not None:
                    with torch.no_grad():
                        buffer.copy_(value)


def set_batch_norm(model: nn.Module, mode: str) -> None:
    """Put every batch (or instance) norm into `mode`, and nothing else."""
    for module in model.modules():
        if isinstance(module, _NormBase):
            module.training = mode == "train"
        elif isinstance(module, nn.RNNBase) and module.dropout == 0:
            # cuDNN computes no gradient of a recurrent layer in eval mode; without dropout
            # the two modes are the same function.
            module.training = True
