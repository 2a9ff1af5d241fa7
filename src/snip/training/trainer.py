"""The one training loop: evaluations, checkpoints and resuming around a replaceable step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from snip.anatomy.parameters import unwrap
from snip.anatomy.undisturbed import restored_modes
from snip.data.dataset import Dataset
from snip.engine.fused.step import Step, TakeStep, training_step
from snip.masks import Masks
from snip.training.config import TrainConfig
from snip.training.display import Display
from snip.training.divergence import require_finite, require_finite_weights
from snip.training.evaluate import device_of, evaluate
from snip.training.interrupts import interrupts_noted
from snip.training.journal import Journal
from snip.training.lock import locked
from snip.training.metrics import Metrics, best_test_error, measured_sparsity, selected
from snip.training.parts import (
    Data,
    data_for,
    make_optimizer,
    seeded,
    set_learning_rate,
    stream,
)
from snip.training.schedule import learning_rate
from snip.training.start import hold, keep, on_engine
from snip.training.state import State, Weights, snapshot

CHECKPOINT_SECONDS = 20.0


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a training came to; errors are fractions of the images."""

    history: tuple[Metrics, ...]
    selected: Metrics  # the evaluation that validation selects: the result to report
    final: Metrics
    best_test_error: float  # lowest test error of all evaluations: what the authors report
    weights: Weights  # state_dict of the selected model; the model itself holds the final one
    seconds: float
    steps_per_second: float

    @property
    def test_error(self) -> float:
        """Test error of the model that validation selects."""
        return self.selected.test_error


def train(
    model: nn.Module,
    dataset: Dataset,
    config: TrainConfig,
    *,
    folder: str | Path | None = None,
    masks: Masks | None = None,
    resume: bool = True,
    on_metrics: Callable[[Metrics], None] | None = None,
    step: Step | None = None,
    engine: str = "dense",
    progress: bool = True,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    lock: bool = True,
) -> TrainResult:
    """Train `model` in place; killed at any moment, it resumes in `folder` to the same bits.

    `engine`: "sparse" computes with the surviving weights only, "auto" with what is faster.
    `lock=False`: the caller holds the folder's lock already.
    """
    folder = None if folder is None else Path(folder)
    data, device = data_for(dataset, config), device_of(model)
    identity = {**config.to_dict(), **dataset.identity(), "engine": engine}
    with locked(folder if lock else None), seeded(config.seed, device), restored_modes(model):
        masks = hold(model, masks, folder, resume=resume)
        whole, (model, choice) = model, on_engine(model, data, engine, folder, resume=resume)
        optimizer, plain = make_optimizer(model, config), unwrap(model)
        identity["masks"] = None if masks is None else masks.digest()
        journal = Journal(folder, identity, every=checkpoint_seconds)
        state = journal.open(plain, optimizer, resume=resume)
        keep(folder, masks, engine, choice)
        clock, stop = Clock(), config.iterations
        take_step = _step_of(model, optimizer, step)
        model.train()
        display = Display(total=stop, done=state.iteration, enabled=progress)
        with display, interrupts_noted() as interrupted:
            for images, labels in stream(data.train, state.iteration, stop):
                lr = learning_rate(config, state.iteration)
                set_learning_rate(optimizer, lr)
                loss, wrong = take_step(images.to(device), labels.to(device))
                require_finite("loss", loss, state.iteration, lr, journal)
                state.count(loss, wrong, len(labels), clock.lap())
                display.update(state.iteration, state.running)
                if evaluation_due(state.iteration, config, len(data.train)):
                    metrics = _measure(model, data, state, lr, masks, clock)
                    tested = metrics.test_loss + (metrics.valid_loss or 0.0)
                    require_finite("evaluation loss", tested, state.iteration, lr, journal)
                    state.record(metrics, plain)
                    journal.record(metrics)
                    if on_metrics is not None:
                        on_metrics(metrics)
                if state.iteration == stop or journal.due() or interrupted():
                    require_finite_weights(plain, state.iteration, lr, journal)
                    journal.save(plain, optimizer, state)
                    state.seconds += clock.lap()
                if interrupted():
                    raise KeyboardInterrupt
        if model is not whole:  # the accelerated copy was trained: its weights go back
            unwrap(whole).load_state_dict(plain.state_dict())
    return _result(state, unwrap(whole))


def _step_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: Step | None) -> TakeStep:
    return training_step(model, optimizer) if step is None else partial(step, model, optimizer)


class Clock:
    """Seconds from lap to lap."""

    def __init__(self) -> None:
        """Start now."""
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.perf_counter()
        passed, self._last = now - self._last, now
        return passed


def evaluation_due(iteration: int, config: TrainConfig, epoch_length: int) -> bool:
    """Whether an evaluation follows step number `iteration` (from 1)."""
    every = config.eval_every or epoch_length
    return iteration % every == 0 or iteration == config.iterations


def _measure(
    model: nn.Module, data: Data, state: State, lr: float, masks: Masks | None, clock: Clock
) -> Metrics:
    """Evaluate on validation and test data, beside the means of the steps since the last time."""
    valid = evaluate(model, data.valid) if data.valid is not None else None
    test = evaluate(model, data.test)
    state.seconds += clock.lap()
    running = state.running
    return Metrics(
        iteration=state.iteration,
        epoch=state.iteration / len(data.train),
        lr=lr,
        train_loss=running.mean_loss,
        train_error=running.error,
        valid_loss=valid.loss if valid else None,
        valid_error=valid.error if valid else None,
        test_loss=test.loss,
        test_error=test.error,
        sparsity=measured_sparsity(unwrap(model), masks),
        seconds=state.seconds,
        images_per_second=running.images / running.seconds,
    )


def _result(state: State, model: nn.Module) -> TrainResult:
    history = tuple(state.history)
    weights = state.selected
    if weights is None:  # no validation part: the last model is the selected one
        weights = snapshot(model)
    return TrainResult(
        history=history,
        selected=selected(history),
        final=history[-1],
        best_test_error=best_test_error(history),
        weights=weights,
        seconds=state.seconds,
        steps_per_second=state.iteration / max(state.step_seconds, 1e-9),
    )
