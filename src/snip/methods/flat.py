"""Tensors by parameter name in one flat buffer, as a method's hooks keep them for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def flattened(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """All values in one vector, in the mapping's order."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def views(flat: torch.Tensor, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The parts of a vector in the shapes and under the names of `like`; they share its memory."""
    parts = flat.split([tensor.numel() for tensor in like.values()])
    return {n: part.view(t.shape) for (n, t), part in zip(like.items(), parts, strict=True)}
