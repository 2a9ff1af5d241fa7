"""Runs of a method that prunes a trained network: a first training to share, then its phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from snip.common import files
from snip.common.console import remark
from snip.common.errors import InputError
from snip.common.files import read_json, reading, write_json
from snip.common.lock import BusyError
from snip.data.dataset import Dataset
from snip.masks import Masks
from snip.methods import DuringTraining, training_method
from snip.methods.course import competing, prune_in_phases
from snip.runs import folder as layout
from snip.runs.config import RunConfig
from snip.runs.result import RunResult
from snip.runs.seeds import seeds_of
from snip.runs.sums import require_as_summed
from snip.training.journal import CHECKPOINT, ENGINE, MASKS, METRICS
from snip.training.loggers import Logger, begun
from snip.training.metrics import Metrics, read_metrics
from snip.training.parts import Data
from snip.training.phases import Phases
from snip.training.session import Options
from snip.training.start import forget_start

FIRST = "first training"
WAIT = 1.0  # seconds between two looks at a folder that another process works in


def method_of(config: RunConfig) -> tuple[str, DuringTraining] | None:
    """The run's method if it prunes a trained network; None for others and for a dense run."""
    return training_method(config.method) if config.sparsity else None


def saved_masks(config: RunConfig, place: Path, *, resume: bool) -> Path | None:
    """Where a resumed run finds its masks, unless it must make them again.

    The weights that a method has trained are in the checkpoint alone: masks without it are of no
    use.
    """
    usable = method_of(config) is None or files.exists(place / CHECKPOINT)
    return place / MASKS if resume and usable else None


def require_scores(config: RunConfig) -> None:
    """Refuse a method that prunes a trained network where nothing is to be trained."""
    if training_method(config.method) is not None:
        raise InputError(
            f"method {config.method!r} prunes while it trains, and this only prunes: "
            f"use snip run --method {config.method}."
        )


def require_possible(config: RunConfig, model: nn.Module) -> None:
    """Refuse a network that the run's method cannot take, before anything is trained."""
    method = method_of(config)
    if method is not None:
        competing(*method, model, None, config.sparsity)


def pruned(
    config: RunConfig,
    dataset: Dataset,
    data: Data,
    drawn: tuple[nn.Module, Masks | None],
    first: Callable[[], RunResult],
    options: Options,
) -> tuple[nn.Module, Masks]:
    """The drawn network, trained by the run `first` and pruned in phases, unless it has masks."""
    model, masks = drawn
    method, place = method_of(config), options.folder
    assert method is not None
    assert place is not None
    if masks is not None:
        log_phases(config, place, options.loggers)
        return model, masks
    if not options.resume:
        layout.clear(place)
        layout.clear_phases(place)
    forget_start(place)
    # Whoever comes back to the folder must know whose phases these are.
    write_json(place / layout.CONFIG, config.to_dict())
    trained = _awaited(first)
    # Noted here, because the folder of the first training may be gone when this run ends.
    write_json(place / layout.FIRST_COST, _first_cost(config, trained))
    _log(options.loggers, FIRST, trained.history() if options.loggers else [])
    path = trained.folder / layout.MODEL
    require_as_summed(path)
    with reading(path, what="weights"):
        model.load_state_dict(load_file(path), strict=False)
    around = replace(options, folder=place / layout.PHASES, on_metrics=None, beside=())
    phases = Phases(model, data, config.training, around)
    weights = competing(*method, model, None, config.sparsity)
    masks = prune_in_phases(*method, phases, config.sparsity, None, weights)
    about = {"protocol": config.protocol, "dataset": dataset.name, "model": config.model}
    return model, masks.with_provenance(**about, seeds=seeds_of(config))


def log_phases(config: RunConfig, place: Path, loggers: Sequence[Logger]) -> None:
    """Give loggers the trainings before the last, which are over."""
    first = place.parent / config.trained_first.folder_name
    if not loggers or method_of(config) is None:
        return
    if layout.state_of(first) == layout.FINISHED:
        _log(loggers, FIRST, RunResult.read(first).history())
    for name, history in _phases(place):
        _log(loggers, name, history)


def _log(loggers: Sequence[Logger], name: str, history: Sequence[Metrics]) -> None:
    with begun([logger.phase(name) for logger in loggers], history):
        pass


def _phases(place: Path) -> Iterator[tuple[str, list[Metrics]]]:
    """The name and the evaluations of each phase in a run's folder."""
    for phase in layout.phase_folders(place):
        yield phase.name, read_metrics(phase / METRICS)


def _awaited(first: Callable[[], RunResult]) -> RunResult:
    """The result of a run, which another process may be at: then its end is waited for."""
    told = False
    while True:
        try:
            return first()
        except BusyError as error:
            if not told:
                remark(f"{error} This run waits.")
            told = True
            time.sleep(WAIT)


def costs(config: RunConfig, place: Path) -> dict[str, dict[str, float]]:
    """Steps and seconds of each training before the last, by its name; of no other runs any."""
    if method_of(config) is None:
        return {}
    found = {}
    noted, first = place / layout.FIRST_COST, place.parent / config.trained_first.folder_name
    if files.exists(noted):
        found[FIRST] = _read_cost(noted)
    elif layout.state_of(first) == layout.FINISHED:  # a run that an older version began
        found[FIRST] = _first_cost(config, RunResult.read(first))
    for name, history in _phases(place):
        last = history[-1]
        found[name] = _cost(last.iteration, last.seconds, last.cpu_seconds)
    return found


def _first_cost(config: RunConfig, trained: RunResult) -> dict[str, float]:
    return _cost(config.training.iterations, trained.seconds, trained.cpu_seconds)


def _cost(iterations: int, seconds: float, cpu_seconds: float | None) -> dict[str, float]:
    """The cost of a training as records keep it; older ones did not count CPU seconds."""
    cost = {"iterations": iterations, "seconds": seconds}
    return cost if cpu_seconds is None else cost | {"cpu_seconds": cpu_seconds}


def _read_cost(path: Path) -> dict[str, float]:
    with reading(path):
        saved = read_json(path)
        cpu_seconds = saved.get("cpu_seconds")
        cpu_seconds = None if cpu_seconds is None else float(cpu_seconds)
        return _cost(int(saved["iterations"]), float(saved["seconds"]), cpu_seconds)


def tidy(place: Path) -> None:
    """Delete what only an unfinished run needs of its phases; their metrics and masks stay."""
    layout.clear_phases(place, keep=(METRICS, MASKS, ENGINE))
