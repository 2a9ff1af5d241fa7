"""What a pruning method may do inside the one training loop, and the step that lets it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.engine.fused.step import TakeStep, wrong_answers
from snip.training.state import State, Weights


class Hooks(nn.Module):
    """What a method does during a training, and all that it must remember. Each part is optional.

    It is a module so that nothing is forgotten: its parameters are trained beside the network's
    (`groups` says how fast), and a checkpoint holds its parameters and its buffers. Random numbers
    come from torch, whose state a checkpoint holds too. `iteration` counts the steps done before.
    """

    def settings(self) -> dict[str, Any]:
        """Numbers and words that decide the outcome: a run with others is another run."""
        return {}

    def groups(self) -> list[dict[str, Any]]:
        """Groups of the hooks' own parameters for the optimiser.

        "lr_scale" in a group multiplies its learning rate.
        """
        return []

    @contextmanager
    def attached(self, _model: nn.Module) -> Iterator[None]:
        """Around the whole training, for a method that must change what a layer computes."""
        yield

    def rate(self, _iteration: int) -> float:
        """What the schedule's learning rate is multiplied by."""
        return 1.0

    def before_step(self, iteration: int) -> None:
        """Called before the forward pass."""

    def weights_to_train(self) -> Weights | None:
        """Values that a step computes with in place of the stored weights, by parameter name.

        The gradient with respect to them is applied to the stored weights (straight-through).
        """
        return None

    def extra_loss(self, _iteration: int) -> torch.Tensor | None:
        """What is added to the loss of a step."""
        return None

    def after_step(self, iteration: int, optimizer: torch.optim.Optimizer) -> None:
        """Called after the optimiser's step."""

    def weights_to_keep(self) -> Weights | None:
        """The weights if the method ended now: evaluations use them. None: as they are stored."""
        return None


@contextmanager
def replaced(model: nn.Module, values: Mapping[str, torch.Tensor] | None) -> Iterator[None]:
    """Inside the block the model's parameters have these values."""
    own = {} if values is None else {n: model.get_parameter(n) for n in values}
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    # Through `.data`: autograd must neither record the change nor take the weights for altered.
    for name, parameter in own.items():
        parameter.data.copy_((values or {})[name])
    try:
        yield
    finally:
        for name, parameter in own.items():
            parameter.data.copy_(before[name])


def hooked_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, hooks: Hooks, state: State
) -> TakeStep:
    """One step of cross-entropy with all that the hooks add to it.

    Like any step it returns the mean loss, without what was added, and the number of wrong answers.
    """

    def step(images: torch.Tensor, labels: torch.Tensor) -> tuple[float, int]:
        done = state.iteration
        hooks.before_step(done)
        for group in optimizer.param_groups:
            group["lr"] *= hooks.rate(done) * group.get("lr_scale", 1.0)
        optimizer.zero_grad(set_to_none=True)
        with replaced(model, hooks.weights_to_train()):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            value, wrong = loss.item(), wrong_answers(logits, labels)
            if not math.isfinite(value):
                return value, wrong
            extra = hooks.extra_loss(done)
            (loss if extra is None else loss + extra).backward()
        optimizer.step()
        hooks.after_step(done, optimizer)
        return value, wrong

    return step
