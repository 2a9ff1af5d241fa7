"""The one training loop: evaluations, checkpoints and resuming around a replaceable step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from snip.common.lock import Lock, locked
from snip.data.dataset import Dataset
from snip.distributed.wrapped import unwrap
from snip.engine.fused.step import Step
from snip.masks import Masks
from snip.network.calls import device_of
from snip.network.untouched import restored_modes
from snip.training.config import TrainConfig
from snip.training.display import Display
from snip.training.hooks import Hooks
from snip.training.interrupts import end_by, signals_noted
from snip.training.loggers import Logger, begun
from snip.training.memory_format import channels_last
from snip.training.metrics import Metrics, best_test_error, selected
from snip.training.parts import Data, data_for, seeded, stream
from snip.training.session import CHECKPOINT_SECONDS, Options, Session
from snip.training.start import begin, hold
from snip.training.state import State, Weights, snapshot


@dataclass(frozen=True, eq=False)
class TrainResult:
    """What a training came to; errors are fractions of the images."""

    history: tuple[Metrics, ...]
    selected: Metrics  # the evaluation that validation selects: the result to report
    final: Metrics
    best_test_error: float  # lowest test error of all evaluations: what the authors report
    weights: Weights  # state_dict of the selected model; the model itself holds the final one
    seconds: float  # wall clock, pauses of the process included
    cpu_seconds: float | None
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
    hooks: Hooks | None = None,
    loggers: Sequence[Logger] = (),
) -> TrainResult:
    """Train `model` in place; killed at any moment, it resumes in `folder` to the same bits.

    `engine`: "sparse" computes with the surviving weights only, "auto" with what is faster.
    `hooks` are those of a method that works in the training, which is then dense.
    `loggers` are told every evaluation (`snip.training.tensorboard`, or your own).
    """
    place = None if folder is None else Path(folder)
    options = Options(
        place, resume, engine, step, on_metrics, progress, checkpoint_seconds,
        hooks=hooks, loggers=tuple(loggers),
    )  # fmt: skip
    data = data_for(dataset, config)
    with locked(place) as lock:
        masks = hold(model, masks, place, resume=resume)
        return train_held(model, data, config, masks, options, lock)


def train_held(
    model: nn.Module,
    data: Data,
    config: TrainConfig,
    masks: Masks | None,
    options: Options,
    lock: Lock,
) -> TrainResult:
    """`train` for a caller who holds the folder's lock, and whose model holds its masks."""
    attached = nullcontext() if options.hooks is None else options.hooks.attached(unwrap(model))
    device = device_of(model)
    with seeded(config.seed, device), restored_modes(model), channels_last(model), attached:
        session = begin(model, data, config, masks, options, lock)
        with begun(options.loggers, session.state.history):
            _loop(session, options)
        if session.model is not model:  # an accelerated copy was trained: its weights go back
            unwrap(model).load_state_dict(unwrap(session.model).state_dict())
    return _result(session.state, unwrap(model))


def _loop(session: Session, options: Options) -> None:
    start, stop = session.state.iteration, session.config.iterations
    display = Display(total=stop, done=start, enabled=options.progress)
    with display, signals_noted() as asked_to_end:
        for images, labels in stream(session.data.train, start, stop):
            session.step(images, labels)
            display.update(session.state.iteration, session.state.running)
            if session.evaluation_due():
                metrics = session.evaluate()
                for logger in options.loggers:
                    logger.record(metrics)
                if options.on_metrics is not None:
                    options.on_metrics(metrics)
            if session.finished() or session.journal.due() or asked_to_end():
                session.save()
            if (signal := asked_to_end()) is not None:
                raise end_by(signal)


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
        cpu_seconds=state.cpu_seconds,
        steps_per_second=state.iteration / max(state.step_seconds, 1e-9),
    )
