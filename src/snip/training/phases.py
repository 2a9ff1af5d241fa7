"""Trainings one after another on one network, each with a folder of its own: prune, train, repeat.

A process that is killed goes on in the phase where it was: of the phases before, each restores its
last checkpoint and has nothing left to do.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from snip.common.files import exists
from snip.common.lock import locked
from snip.masks import Masks
from snip.training.config import TrainConfig
from snip.training.hooks import Hooks
from snip.training.journal import CHECKPOINT, MASKS
from snip.training.parts import Data
from snip.training.schedule import shortened
from snip.training.session import Options
from snip.training.start import forget_start, hold
from snip.training.trainer import TrainResult, train_held


@dataclass(eq=False)
class Phases:
    """A network, its data, and the training that lengths and rates of the phases refer to."""

    model: nn.Module
    data: Data
    config: TrainConfig
    options: Options = field(default_factory=Options)  # its folder is the one around the phases'

    def train(
        self,
        name: str,
        config: TrainConfig,
        *,
        start: Callable[[], Masks] | None = None,
        hooks: Hooks | None = None,
    ) -> TrainResult:
        """Train under the masks that `start` makes, or with hooks.

        `start` may change weights. It is not called if the phase has a checkpoint, which holds the
        weights; its masks are beside it.
        """
        folder = None if self.options.folder is None else self.options.folder / name
        loggers = tuple(logger.phase(name) for logger in self.options.loggers)
        options = dataclasses.replace(
            self.options, folder=folder, hooks=hooks, beside=(), loggers=loggers
        )
        seed = phase_seed(self.config.seed, name)
        config = dataclasses.replace(config, seed=seed)
        with locked(folder) as lock:
            forget_start(folder)
            masks = None
            if start is not None:
                began = folder is not None and options.resume and exists(folder / CHECKPOINT)
                masks = Masks.load(folder / MASKS) if began and folder is not None else start()
                hold(self.model, masks, folder, resume=options.resume)
            data = self.data.with_seed(seed)
            return train_held(self.model, data, config, masks, options, lock)


def part(config: TrainConfig, share: float, *, lr_scale: float = 1.0) -> TrainConfig:
    """A training `share` as long as `config`, with its drops; its rate times `lr_scale`."""
    shorter = shortened(config, max(1, round(config.iterations * share)))
    return dataclasses.replace(shorter, lr=config.lr * lr_scale)


def steady(config: TrainConfig, share: float, *, lr_scale: float = 1.0) -> TrainConfig:
    """`part` without drops of the rate."""
    return dataclasses.replace(part(config, share, lr_scale=lr_scale), lr_drops=())


def phase_seed(seed: int, name: str) -> int:
    """A phase's own seed: another order of the data than in the phases before."""
    return int.from_bytes(hashlib.sha256(f"phase {name} {seed}".encode()).digest()[:6], "big")
