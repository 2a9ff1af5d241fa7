"""Why no step of cross-entropy can be taken on a batch, in a sentence where torch has none."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from snip.common.errors import InputError, KindError
from snip.engine.fused.step import TakeStep
from snip.network.untouched import undisturbed
from snip.scoring.batches import describe

# What torch raises of labels that are no class indices, and of outputs that are no tensor.
OF_TORCH = (RuntimeError, IndexError, ValueError, TypeError, AttributeError)


def why_no_loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> InputError | None:
    """What is wrong with a batch or with the model's outputs; None if they have a cross-entropy.

    One forward as in a training step, which leaves no trace.
    """
    with undisturbed(model), torch.no_grad():
        model.train()
        logits = model(inputs.clone())  # a forward may write into its input
    if not isinstance(logits, torch.Tensor):
        return KindError(
            f"the model returns {describe(logits)}, and training by cross-entropy takes logits: "
            "wrap the model in a module that returns them alone."
        )
    try:
        F.cross_entropy(logits.cpu(), labels.cpu())  # CUDA would not survive a label out of range
    except OF_TORCH as error:
        return InputError(
            f"cross-entropy of outputs {tuple(logits.shape)} and labels {labels.dtype} "
            f"{tuple(labels.shape)} failed: {str(error).rstrip('.')}. Give class indices from 0 on "
            "as int64 (labels.long()), and a model with an output for each class."
        )
    return None


def explained(model: nn.Module, take_step: TakeStep) -> TakeStep:
    """The same step, which says in a sentence what is wrong with a batch that it fails on."""

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
        try:
            return take_step(images, labels)
        except OF_TORCH as error:
            try:
                reason = why_no_loss(model, images, labels)
            except Exception:  # what the model itself raises is told as it is
                reason = None
            if reason is None:
                raise
            raise reason from error

    return step
