"""Which engine a training runs on: dense, sparse, or whichever is timed to be faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from snip.anatomy.undisturbed import undisturbed
from snip.common.checks import check_kinds
from snip.common.errors import nearest
from snip.common.timing import best_time
from snip.engine.accelerate import accelerate
from snip.engine.fused.straight import straight_of
from snip.engine.kernels.straight import Gradients
from snip.engine.layers.packing import ways_of
from snip.masks import held_masks

ENGINES = ("auto", "sparse", "dense")
ROUNDS = 5


@dataclass(frozen=True)
class Choice:
    """What was decided, so that a resumed run does the same sums in the same order."""

    engine: str
    ways: dict[str, str] = field(default_factory=dict)  # of layers that do not run sparse
    step_seconds: dict[str, float] = field(default_factory=dict)  # by engine, if measured

    def to_dict(self) -> dict[str, Any]:
        """A dict that JSON can write."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Choice:
        """The inverse of `to_dict`; values of the wrong kind are refused."""
        choice = cls(data["engine"], data["ways"], data["step_seconds"])
        check_kinds(choice, "an engine's choice")
        if choice.engine not in ("sparse", "dense"):
            raise nearest("engine", choice.engine, ("sparse", "dense"))
        return choice


def choose(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], engine: str
) -> tuple[nn.Module, Choice]:
    """The network to train with the engine asked for; `model` itself where that is dense."""
    if engine not in ENGINES:
        raise nearest("engine", engine, ENGINES)
    if engine == "dense" or held_masks(model) is None:
        return model, Choice("dense")
    fast = accelerate(model, batch)
    if fast is model:  # no native kernels: accelerate has said so
        return model, Choice("dense")
    chosen = Choice("sparse", ways_of(fast))
    if engine == "sparse":
        return fast, chosen
    seconds = {"dense": _step_seconds(model, batch), "sparse": _step_seconds(fast, batch)}
    if seconds["dense"] <= seconds["sparse"]:
        return model, Choice("dense", step_seconds=seconds)
    return fast, Choice("sparse", chosen.ways, seconds)


def choose_again(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], choice: Choice
) -> nn.Module:
    """The network of an earlier choice."""
    if choice.engine == "dense":
        return model
    return accelerate(model, batch, ways=choice.ways)


def _step_seconds(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Best time of forward and backward; weights, buffers and gradients are left as they were."""
    work = _native_work(model, batch) or partial(_torch_work, model, batch)
    with undisturbed(model), torch.enable_grad():
        model.train()
        return best_time(work, rounds=ROUNDS, warmup=0)


def _torch_work(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    weights = [p for p in model.parameters() if p.requires_grad]
    torch.autograd.grad(F.cross_entropy(model(batch[0]), batch[1]), weights, allow_unused=True)


def _native_work(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]
) -> Callable[[], object] | None:
    """The same work as one native call, if training makes that of it; else None."""
    straight = straight_of(model)
    program = None if straight is None else straight.training_program(model, *batch)
    if program is None:
        return None
    gradients = Gradients(program.native, len(batch[0]))
    return partial(gradients.fill, *(part.contiguous() for part in batch))
