"""The one training loop: evaluations, checkpoints and resuming around a replaceable step."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from snip.data.dataset import Dataset
from snip.engine.accelerate import densify
from snip.engine.engines import Choice, choose, choose_again
from snip.errors import FileError, InputError
from snip.files import write_text
from snip.masks import Masks
from snip.parameters import unwrap
from snip.prune import held_masks
from snip.training.config import TrainConfig
from snip.training.display import Display
from snip.training.evaluate import device_of, evaluate, restored_modes
from snip.training.journal import Journal
from snip.training.lock import locked
from snip.training.metrics import Metrics, best_test_error, measured_sparsity, selected
from snip.training.parts import (
    Data,
    Step,
    data_for,
    make_optimizer,
    seeded,
    set_learning_rate,
    stream,
    train_step,
)
from snip.training.schedule import learning_rate
from snip.training.state import State, Weights

MASKS = "masks.safetensors"
ENGINE = "engine.json"
CHECKPOINT_SECONDS = 20.0


class DivergenceError(InputError):
    """The loss is no longer a number."""


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a training came to; errors are fractions of the images."""

    history: tuple[Metrics, ...]
    selected: Metrics  # the evaluation that validation selects: the result to report
    final: Metrics
    best_test: float  # lowest test error of all evaluations: what the authors report
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
    step: Step = train_step,
    engine: str = "dense",
    progress: bool = True,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> TrainResult:
    """Train `model` in place; killed at any moment, it resumes in `folder` to the same bits.

    `engine`: "sparse" computes with the surviving weights only, "auto" with what is faster.
    """
    folder = None if folder is None else Path(folder)
    data, device = data_for(dataset, config), device_of(model)
    with locked(folder), seeded(config.seed, device), restored_modes(model):
        masks = _hold(model, masks, folder, resume=resume)
        whole, model = model, _on_engine(model, data, engine, folder, resume=resume)
        optimizer, plain = make_optimizer(model, config), unwrap(model)
        identity = {**config.to_dict(), "dataset": dataset.name, "masks": fingerprint(masks)}
        journal = Journal(folder, identity, every=checkpoint_seconds)
        state = journal.open(plain, optimizer, resume=resume)
        clock, stop = Clock(), config.iterations
        model.train()
        with Display(total=stop, done=state.iteration, enabled=progress) as display:
            for images, labels in stream(data.train, state.iteration, stop):
                lr = learning_rate(config, state.iteration)
                set_learning_rate(optimizer, lr)
                loss, wrong = step(model, optimizer, images.to(device), labels.to(device))
                _require_finite("loss", loss, state.iteration, lr, journal)
                state.count(loss, wrong, len(labels), clock.lap())
                display.update(state.iteration, state.running)
                if evaluation_due(state.iteration, config, len(data.train)):
                    metrics = _measure(model, data, state, lr, masks, clock)
                    tested = metrics.test_loss + (metrics.valid_loss or 0.0)
                    _require_finite("evaluation loss", tested, state.iteration, lr, journal)
                    state.record(metrics, plain)
                    journal.record(metrics)
                    if on_metrics is not None:
                        on_metrics(metrics)
                if state.iteration == stop or journal.due():
                    journal.save(plain, optimizer, state)
                    state.seconds += clock.lap()
        if model is not whole:
            densify(model)
    return _result(state, unwrap(whole))


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


def fingerprint(masks: Masks | None) -> str | None:
    """A digest of names, shapes and bits, or None without masks."""
    if masks is None:
        return None
    digest = hashlib.sha256()
    for name in sorted(masks):
        bits = np.packbits(masks[name].numpy())
        digest.update(f"{name}{tuple(masks[name].shape)}".encode() + bits.tobytes())
    return digest.hexdigest()[:16]


def _hold(
    model: nn.Module, masks: Masks | None, folder: Path | None, *, resume: bool
) -> Masks | None:
    """Put the masks on the model and, once, into the folder; without any, the model's own count."""
    if masks is None:
        masks = held_masks(model)
    else:
        masks.apply(model)
    if masks is None or folder is None:
        return masks
    path = folder / MASKS
    if not resume or not path.exists():
        masks.save(path)
    elif Masks.load(path) != masks:
        raise FileError(
            f"{path} holds other masks than this model: choose another folder, "
            "or start over in this one with resume=False."
        )
    return masks


def _on_engine(
    model: nn.Module, data: Data, engine: str, folder: Path | None, *, resume: bool
) -> nn.Module:
    """The network that trains; what "auto" decided is kept in the folder for a resumed run."""
    batch = next(iter(data.train))
    path = None if folder is None else folder / ENGINE
    if path is not None and resume and path.exists():
        return choose_again(model, batch, Choice.from_dict(json.loads(path.read_text())))
    network, choice = choose(model, batch, engine)
    if path is not None and engine != "dense":
        write_text(path, json.dumps(choice.to_dict(), indent=2) + "\n")
    return network


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


def _require_finite(what: str, loss: float, done: int, lr: float, journal: Journal) -> None:
    if math.isfinite(loss):
        return
    raise DivergenceError(
        f"the {what} is {loss} at iteration {done} (lr {lr:g}): training stopped. Try a smaller lr "
        f"(such as {lr / 10:g}), a lower sparsity or another initializer, and check the data for "
        f"NaN. {journal.last_good()}."
    )


def _result(state: State, model: nn.Module) -> TrainResult:
    history = tuple(state.history)
    weights = state.selected
    if weights is None:  # no validation part: the last model is the selected one
        weights = {name: v.detach().cpu().clone() for name, v in model.state_dict().items()}
    return TrainResult(
        history=history,
        selected=selected(history),
        final=history[-1],
        best_test=best_test_error(history),
        weights=weights,
        seconds=state.seconds,
        steps_per_second=state.iteration / max(state.step_seconds, 1e-9),
    )
