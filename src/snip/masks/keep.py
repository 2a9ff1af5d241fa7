"""How one mask zeroes what is pruned of a parameter and of its gradient, as fast as it can."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from snip.distributed.shards import local

RIDER = "_snip_keep"  # on a Parameter: its Keep
# Integers as wide as a number, by its bytes. A number's bits times 0 are exactly +0.0, be it NaN or
# -0.0, and times 1 they stay as they are: several times as fast as choosing by a condition.
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# In training, a mask of up to SMALL elements is stored as such integers. A larger one is made
# integers by chunks that fit a CPU's cache, or, up to a density of 1/FEW, the kept values are
# copied out and back. Anything faster would take more memory.
SMALL, CHUNK, FEW = 1 << 18, 1 << 17, 48


class Keep:
    """One parameter's mask, ready to zero what is pruned in the parameter or its gradient."""

    def __init__(self, mask: torch.Tensor, *, sharded: bool = False) -> None:
        self.mask = mask  # bool, or 0 and 1 as integers
        self.sharded = sharded  # whether the mask is of this process's part of a DTensor
        self.indices: torch.Tensor | None = None
        self.prepared = False
        self.gradient_hook: Any = None
        self.left = False  # whether another network is trained instead of this parameter's

    def zero_(self, tensor: torch.Tensor) -> None:
        """Write zeros where the mask is False, also over NaN and -0.0; leave the rest alone."""
        # This runs twice for every parameter in every step, so it makes as few calls as it can.
        tensor = tensor.detach()  # autograd must not record the zeroing
        if self.sharded:
            tensor = local(tensor)
        bits = BITS.get(tensor.element_size())
        if self.mask.device != tensor.device:
            self._move(tensor.device)
        if self.indices is not None and tensor.is_contiguous():
            flat = tensor.view(-1)
            kept = flat.take(self.indices)
            flat.zero_().index_copy_(0, self.indices, kept)
        elif bits is None:  # complex numbers of two doubles
            tensor.masked_fill_(self.mask == 0, 0)
        elif tensor.numel() <= SMALL or tensor.device.type != "cpu":
            tensor.view(bits).mul_(self.mask)
        else:
            rows = max(1, CHUNK * len(tensor) // tensor.numel())
            for part, mask in zip(tensor.split(rows), self.mask.split(rows), strict=True):
                part.view(bits).mul_(mask)

    def watch_gradient(self, parameter: torch.Tensor) -> None:
        """Zero the gradient of pruned weights whenever it is accumulated."""
        # PyTorch takes a hook only for a parameter that requires a gradient. A frozen one gets it
        # as well, because it may be unfrozen later.
        frozen = not parameter.requires_grad
        parameter.requires_grad_(True)
        self.gradient_hook = parameter.register_post_accumulate_grad_hook(self.on_gradient)
        parameter.requires_grad_(not frozen)

    def on_gradient(self, parameter: torch.Tensor) -> None:
        """Zero the gradient where the parameter is pruned."""
        gradient = parameter.grad
        # A sparse gradient (an embedding's) is left to the zeroing after the step.
        if gradient is not None and not gradient.is_sparse:
            if not self.prepared:  # not before: pruning alone does not need it
                self._prepare(gradient)
            self.zero_(gradient)

    def _prepare(self, gradient: torch.Tensor) -> None:
        """Store the mask in the form in which it is applied fastest."""
        self.prepared = True
        if self.mask.numel() <= SMALL:
            self.mask = self.mask.to(BITS.get(gradient.element_size(), torch.bool))
        elif int(self.mask.count_nonzero()) * FEW <= self.mask.numel():
            self.indices = torch.nonzero(self.mask.reshape(-1)).flatten()

    def _move(self, device: torch.device) -> None:
        self.mask = self.mask.to(device)
        self.indices = None if self.indices is None else self.indices.to(device)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        # In a pickle this is an empty dict, so that a saved parameter is read without this library
        # and under `weights_only`. The holding of a loaded module puts the real one back.
        return OrderedDict, ()
