"""A training under way: what it is made of, and what it does between two batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from snip.distributed.wrapped import unwrap
from snip.engine.fused.step import Step, TakeStep
from snip.masks import Masks
from snip.network.calls import device_of
from snip.training.config import TrainConfig
from snip.training.divergence import require_finite, require_finite_weights
from snip.training.evaluate import evaluate
from snip.training.hooks import Hooks, replaced
from snip.training.journal import Journal
from snip.training.loggers import Logger
from snip.training.metrics import Metrics, measured_sparsity
from snip.training.parts import Data, set_learning_rate, set_weight_decay
from snip.training.schedule import learning_rate, weight_decay
from snip.training.state import State

CHECKPOINT_SECONDS = 20.0


@dataclass(frozen=True)
class Options:
    """What a caller may ask of a training beside its configuration."""

    folder: Path | None = None  # of metrics, masks and checkpoints; None keeps nothing
    resume: bool = True  # False starts over
    engine: str = "dense"
    step: Step | None = None  # in place of the usual step
    on_metrics: Callable[[Metrics], None] | None = None
    progress: bool = True
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    beside: tuple[str, ...] = ()  # files that the caller put into the folder and that must stay
    hooks: Hooks | None = None  # of a method that works in the training; its step is dense
    loggers: tuple[Logger, ...] = ()


class Clock:
    """Wall-clock and CPU seconds from lap to lap."""

    def __init__(self) -> None:
        """Start now."""
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def lap(self) -> tuple[float, float]:
        """Wall-clock seconds since the last lap, and CPU seconds of all threads."""
        wall, cpu = time.perf_counter(), time.process_time()
        passed = wall - self._wall, cpu - self._cpu
        self._wall, self._cpu = wall, cpu
        return passed


@dataclass(eq=False)
class Session:
    """The parts of one training. Its methods are what the loop does, one line each."""

    model: nn.Module  # the one that trains: the user's own or an accelerated one
    data: Data
    config: TrainConfig
    masks: Masks | None
    optimizer: torch.optim.Optimizer
    take_step: TakeStep
    journal: Journal
    state: State
    hooks: Hooks | None = None
    clock: Clock = field(default_factory=Clock)
    lr: float = 0.0  # of the last step, by the schedule

    def __post_init__(self) -> None:
        self._plain, self._device = unwrap(self.model), device_of(self.model)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Take one training step at the schedule's rate, and stop if its loss is no number."""
        self.lr = learning_rate(self.config, self.state.iteration)
        set_learning_rate(self.optimizer, self.lr)
        set_weight_decay(self.optimizer, weight_decay(self.config, self.state.iteration))
        loss, wrong = self.take_step(images.to(self._device), labels.to(self._device))
        require_finite("loss", loss, self.state.iteration, self.lr, self.journal)
        self.state.count(loss, wrong, len(labels), self._lap())

    def finished(self) -> bool:
        """Whether the last step was the last of all."""
        return self.state.iteration == self.config.iterations

    def evaluation_due(self) -> bool:
        """Whether an evaluation follows the last step."""
        every = self.config.eval_every or len(self.data.train)
        return self.state.iteration % every == 0 or self.finished()

    def evaluate(self) -> Metrics:
        """Evaluate on validation and test data, and write the metrics down."""
        kept = None if self.hooks is None else self.hooks.weights_to_keep()
        with replaced(self._plain, kept):
            metrics = self._measured()
            tested = metrics.test_loss + (metrics.valid_loss or 0.0)
            require_finite("evaluation loss", tested, self.state.iteration, self.lr, self.journal)
            self.state.record(metrics, self._plain)
        self.journal.record(metrics)
        return metrics

    def save(self) -> None:
        """Write a checkpoint, unless a weight is no longer a number."""
        for trained in (self._plain, self.hooks):
            if trained is not None:
                require_finite_weights(trained, self.state.iteration, self.lr, self.journal)
        self.journal.save(self._plain, self.optimizer, self.state, self.hooks)
        self._lap()

    def _lap(self) -> float:
        """Count the time since the last call as spent; return its wall-clock seconds."""
        wall, cpu = self.clock.lap()
        self.state.spend(wall, cpu)
        return wall

    def _measured(self) -> Metrics:
        """The errors now, beside the means of the training steps since the last evaluation."""
        data, state, running = self.data, self.state, self.state.running
        valid = evaluate(self.model, data.valid) if data.valid is not None else None
        test = evaluate(self.model, data.test)
        self._lap()
        return Metrics(
            iteration=state.iteration,
            epoch=state.iteration / len(data.train),
            lr=float(self.optimizer.param_groups[0]["lr"]),  # with what hooks made of it
            train_loss=running.mean_loss,
            train_error=running.error,
            valid_loss=valid.loss if valid else None,
            valid_error=valid.error if valid else None,
            test_loss=test.loss,
            test_error=test.error,
            sparsity=measured_sparsity(self._plain, self.masks),
            seconds=state.seconds,
            images_per_second=running.images / running.seconds,
            cpu_seconds=state.cpu_seconds,
        )
