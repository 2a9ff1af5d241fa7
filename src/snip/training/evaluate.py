"""Loss and error of a network on labelled batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from snip.common.errors import InputError
from snip.engine.fused.step import wrong_answers
from snip.network.calls import device_of
from snip.network.untouched import restored_modes


@dataclass(frozen=True)
class Evaluation:
    """Mean cross-entropy and the fraction of images classified wrongly."""

    loss: float
    error: float


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Evaluation:
    """Loss and error of `model` in eval mode; every module gets its own mode back afterwards."""
    device = device_of(model)
    loss, wrong, images = 0.0, 0, 0
    with restored_modes(model):
        model.eval()
        for inputs, labels in batches:
            labels = labels.to(device)
            logits = model(inputs.to(device))
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            wrong += wrong_answers(logits, labels)
            images += len(labels)
    if not images:
        raise InputError("there is nothing to evaluate on: the batches hold no images.")
    return Evaluation(loss / images, wrong / images)
