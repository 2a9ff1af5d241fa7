"""Use a model without leaving a trace: modes, attributes, buffers and random states come back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from snip.network.snapshot import Snapshot

BATCH_NORM_MODES = ("eval", "train")
# Of two values, batch norm makes plus and minus one, whatever they are: all gradients vanish.
FEWEST_VALUES = 8


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
    try:
        yield before
    finally:
        before.restore()


@contextmanager
def batch_norm_in(model: nn.Module, mode: str) -> Iterator[None]:
    """Inside the block every batch (or instance) norm is in `mode`, and nothing else.

    One that would ask other processes for their statistics (SyncBatchNorm) takes those of the
    batch alone, as one process would: the others may be at another batch, or at none.
    """
    handles, local = [], []
    for module in model.modules():
        if isinstance(module, nn.SyncBatchNorm) and "forward" not in module.__dict__:
            module.__dict__["forward"] = MethodType(_BatchNorm.forward, module)
            local.append(module)
        if isinstance(module, _NormBase):
            if mode == "train" and _is_frozen(module):
                continue  # it is kept as it is on purpose, and so are its statistics
            module.training = mode == "train"
            if module.training and isinstance(module, _BatchNorm):
                handles.append(module.register_forward_pre_hook(_only_with_statistics))
        elif isinstance(module, nn.RNNBase) and module.dropout == 0:
            # cuDNN computes no gradient of a recurrent layer in eval mode; without dropout
            # the two modes are the same function.
            module.training = True
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for norm in local:
            del norm.__dict__["forward"]


def _only_with_statistics(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Use the running statistics where a batch has too few values per channel for its own."""
    module.training = not args or args[0].numel() >= FEWEST_VALUES * args[0].shape[1]


def _is_frozen(module: nn.Module) -> bool:
    """Whether a norm has parameters and none of them is trained."""
    own = list(module.parameters(recurse=False))
    return bool(own) and not any(parameter.requires_grad for parameter in own)
