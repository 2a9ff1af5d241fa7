"""Use a model without leaving a trace: modes, attributes, buffers and random states come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from snip.anatomy.snapshot import Snapshot

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
def undisturbed(model: nn.Module) -> Iterator[Snapshot]:
    """Restore modes, attributes, buffers and random states on the way out.

    Gives the snapshot from before, which knows what has changed so far.
    """
    before = Snapshot(model)
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices):  # those of CUDA are not in the snapshot
        try:
            yield before
        finally:
            before.restore()


def set_batch_norm(model: nn.Module, mode: str) -> None:
    """Put every batch (or instance) norm into `mode`, and nothing else."""
    for module in model.modules():
        if isinstance(module, _NormBase):
            module.training = mode == "train"
        elif isinstance(module, nn.RNNBase) and module.dropout == 0:
            # cuDNN computes no gradient of a recurrent layer in eval mode; without dropout
            # the two modes are the same function.
            module.training = True
