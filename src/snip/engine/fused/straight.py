"""Straight networks: which inputs the native call takes, and the programs made for them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from snip.engine.fused.program import Program
from snip.engine.fused.stages import Stage
from snip.engine.kernels.library import vector_floats
from snip.engine.kernels.memory import Reused, readable
from snip.engine.layers.layouts import FEW_IMAGES
from snip.network.parameters import Accelerated

LINEAR_LANES = 64  # at most: the sums of linear layers then leave some vector registers free
MOST_PROGRAMS = 16  # shapes of batches whose program is kept


class Straight:
    """The stages of a network for inputs of one rank, and the programs made of them so far."""

    def __init__(self, stages: tuple[Stage, ...], rank: int) -> None:
        self.stages, self.rank = stages, rank
        self._memory = Reused()  # of all programs: mostly one of them trains
        self._programs: dict[tuple[Any, ...], Program] = {}
        # By whether it trains: the shape of the last input, and its program.
        self._last: dict[bool, tuple[torch.Size, Program]] = {}

    def forward(self, root: nn.Module, x: Any) -> torch.Tensor | None:
        """The network's output; None if the native call does not take `x`, or not its gradient."""
        training = torch.is_grad_enabled()
        # torch refuses to train on inputs that were made in inference mode, and says so itself.
        if not self._takes(x) or (training and (x.requires_grad or x.is_inference())):
            return None
        program = self._program(root, x.shape, training=training)
        if program is None:
            return None
        x = x.contiguous()
        if training and program.places:
            return program.differentiable(x)
        return program.native.forward(x)

    def training_program(self, root: nn.Module, shape: torch.Size) -> Program | None:
        """The program to train on a batch of this shape that `takes_batch` allows, if any."""
        return self._program(root, shape, training=True)

    def takes_batch(self, images: torch.Tensor, labels: torch.Tensor) -> bool:
        """Whether the native call reads such a batch and computes all the gradients it asks for."""
        # torch refuses to train on images that were made in inference mode.
        if images.requires_grad or images.is_inference() or not readable(labels, torch.int64):
            return False
        return self._takes(images) and labels.shape == images.shape[:1]

    def _takes(self, x: Any) -> bool:
        return (
            isinstance(x, torch.Tensor) and x.ndim == self.rank and x.shape[0] > 0 and readable(x)
        )

    def _program(self, root: nn.Module, shape: torch.Size, *, training: bool) -> Program | None:
        """The program for inputs of this shape, prepared once; None if the layers do not fit it."""
        last_shape, found = self._last.get(training, (None, None))
        if shape == last_shape and found is not None and found.holds():
            return found  # nearly always
        key = (shape[1:], self._lanes(shape[0], training=training), training)
        found = self._programs.get(key)
        if found is None or not found.holds():
            try:
                made = (root, self.stages, tuple(shape[1:]), key[1], self._memory)
                found = Program(*made, training=training)
            except ValueError:  # the user's forward will say what is wrong, if anything is
                return None
            if key not in self._programs and len(self._programs) >= MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]  # the oldest
            self._programs[key] = found
        self._last[training] = shape, found
        return found

    def _lanes(self, batch: int, *, training: bool) -> int:
        """Samples computed side by side: by batch size alone, so that equal runs add up equally."""
        vector = vector_floats()
        if any(stage.kind in ("conv", "pool") for stage in self.stages):
            return 1 if batch < FEW_IMAGES and not training else max(FEW_IMAGES, vector)
        lanes = math.ceil(batch / math.ceil(batch / LINEAR_LANES))
        # Rows of whole vectors: a vector that crosses a cache line takes two reads.
        return lanes if lanes < vector else math.ceil(lanes / vector) * vector

    def __deepcopy__(self, memo: Any) -> Straight:
        return Straight(self.stages, self.rank)

    def __getstate__(self) -> dict[str, Any]:
        return vars(Straight(self.stages, self.rank))  # programs hold addresses of this process


def straight_of(model: nn.Module) -> Straight | None:
    """What runs an accelerated network as one native call; None for any other network."""
    return model.snip_conversion.straight if isinstance(model, Accelerated) else None
