"""Which engine a training runs on: dense, sparse, or whichever is timed to be faster."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from snip.common.checks import check_kinds
from snip.common.errors import InputError, nearest, warn
from snip.common.timing import Work
from snip.engine.accelerate import sparse_or_dense, warn_dense
from snip.engine.fused.straight import straight_of
from snip.engine.kernels.straight import Gradients
from snip.engine.layers.packing import DENSE, SPARSE
from snip.engine.pace import step_of
from snip.masks import held_masks
from snip.network.calls import device_off_cpu
from snip.network.untouched import restored_modes

ENGINES = ("auto", SPARSE, DENSE)
Batch = tuple[torch.Tensor, torch.Tensor]


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
        if choice.engine not in (SPARSE, DENSE):
            raise nearest("engine", choice.engine, (SPARSE, DENSE))
        return choice


def choose(model: nn.Module, batch: Batch, engine: str) -> tuple[nn.Module, Choice]:
    """The network to train with the engine asked for; `model` itself where that is dense."""
    if engine not in ENGINES:
        raise nearest("engine", engine, ENGINES)
    auto = engine == "auto"
    # On a GPU, dense is what "auto" is expected to choose, and needs no warning.
    dense = engine == DENSE or (auto and device_off_cpu(model) is not None)
    if dense or held_masks(model) is None:
        return model, Choice(DENSE)
    with restored_modes(model):
        model.train()
        found = sparse_or_dense(model, batch, timed=auto, work_of=partial(_step, batch=batch))
    if found.why and not found.seconds:  # of "auto" a slower engine is no surprise
        warn_dense(found.why)
    for remark in found.remarks:
        warn(remark)
    network = found.settled()
    if found.why:  # with what the user wrapped it in, such as torch.compile or DDP
        return model, Choice(DENSE, found.ways, found.seconds)
    return network, Choice(SPARSE, found.ways, found.seconds)


def choose_again(model: nn.Module, batch: Batch, choice: Choice) -> nn.Module:
    """The network of an earlier choice; InputError if a sparse one cannot be made here."""
    if choice.engine == DENSE:
        return model
    found = sparse_or_dense(model, batch, ways=choice.ways, timed=False)
    if found.why:
        raise InputError(
            f"this training began sparse and cannot go on so ({found.why.rstrip('.')}): start it "
            'over with resume=False, and with engine="dense" if it is to run here as it is.'
        )
    return found.settled()


def _step(network: nn.Module, batch: Batch) -> Work:
    """Forward and backward of a training step, as the training loop does them."""
    network.train()
    return _native_work(network, batch) or step_of(batch[0], training=True)(network)


def _native_work(model: nn.Module, batch: Batch) -> Work | None:
    """The same work as one native call, if training makes that of it; else None."""
    straight = straight_of(model)
    if straight is None or not straight.takes_batch(*batch):
        return None
    program = straight.training_program(model, batch[0].shape)
    if program is None:
        return None
    gradients = Gradients(program.native, len(batch[0]))
    return partial(gradients.fill, *(part.contiguous() for part in batch))
