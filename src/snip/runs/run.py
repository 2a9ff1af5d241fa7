"""One whole run: build, prune, train, test, all of it in a folder that names itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError
from snip.common.files import exists, write_json
from snip.common.lock import Lock, locked
from snip.common.machine import note_code
from snip.data import load
from snip.data.dataset import Dataset
from snip.masks import Masks
from snip.models.resolve import draw_network, redraw_network
from snip.network.calls import device_of
from snip.reports.report import report
from snip.runs import folder as layout
from snip.runs import in_phases
from snip.runs.config import SHUFFLED, RunConfig
from snip.runs.controlled import prune_controlled
from snip.runs.ending import result_of
from snip.runs.logs import loggers_of
from snip.runs.result import RunResult
from snip.runs.seeds import seeds_of
from snip.runs.sums import write_result
from snip.training.loggers import begun
from snip.training.metrics import Metrics
from snip.training.parts import data_for, seeded
from snip.training.session import CHECKPOINT_SECONDS, Options
from snip.training.state import snapshot
from snip.training.trainer import train_held


def run(
    config: RunConfig,
    root: str | Path = "runs",
    *,
    folder: str | Path | None = None,
    data_dir: str | Path | None = None,
    download: bool = False,
    resume: bool = True,
    device: str | torch.device = "cpu",
    on_state: Callable[[str], None] | None = None,
    on_metrics: Callable[[Metrics], None] | None = None,
    progress: bool = True,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    log: Iterable[str] = (),
) -> RunResult:
    """Do one run in `root`, resume it, or return its result at once if it is finished.

    `folder` is an exact place instead of one in `root` that is named by the configuration;
    `resume=False` starts over; `on_state` is told how far the folder's run had come; `log` names
    loggers of `snip.runs.logs`, such as "tensorboard", which a finished run is given whole.
    """
    note_code()
    place = Path(root) / config.folder_name if folder is None else Path(folder)
    loggers = loggers_of(log, place, config)
    options = Options(
        place,
        resume,
        engine=config.engine,
        on_metrics=on_metrics,
        progress=progress,
        checkpoint_seconds=checkpoint_seconds,
        beside=(layout.CONFIG, layout.REPORT) if config.sparsity else (layout.CONFIG,),
        loggers=loggers,
    )
    first = partial(
        run,
        config.trained_first,
        place.parent,
        data_dir=data_dir,
        device=device,
        progress=progress,
        checkpoint_seconds=checkpoint_seconds,
    )
    finished = resume and layout.state_of(place) == layout.FINISHED
    # A finished run is only read, which needs no lock and may be on a disk that takes none.
    with locked(None if finished else place) as lock:
        layout.require_own(place, config)
        if on_state is not None:
            on_state(layout.state_of(place))
        if finished:
            result = RunResult.read(place)
            in_phases.log_phases(config, place, loggers)
            with begun(loggers, result.history() if loggers else []):
                return result
        read = partial(load, config.dataset, data_dir=data_dir, download=download)
        return _done(config, place, read, first, options, torch.device(device), lock)


def _done(
    config: RunConfig,
    place: Path,
    read: Callable[[], Dataset],
    first: Callable[[], RunResult],
    options: Options,
    device: torch.device,
    lock: Lock,
) -> RunResult:
    """Do a run whose folder is locked. `first` is the run that a method which trains begins with.

    Whatever can be wrong is told before something slower begins: first the network's name, then
    the data, then the sizes of its batches, and only then is anything written.
    """
    drawn = draw(config, device, saved=in_phases.saved_masks(config, place, resume=options.resume))
    in_phases.require_possible(config, drawn[0])
    dataset = read()
    data = data_for(labelled(config, dataset), config.training)
    if in_phases.method_of(config) is None:
        model, masks = _pruned(config, dataset, *drawn)
    else:
        model, masks = in_phases.pruned(config, dataset, data, drawn, first, options)
    if not options.resume:
        layout.clear(place)
    _write_start(place, config, model, masks)
    trained = train_held(model, data, config.last_training, masks, options, lock)
    lock.require()
    layout.write_weights(place / layout.MODEL, snapshot(model))
    layout.write_weights(place / layout.SELECTED, trained.weights)
    result = result_of(config, place, dataset, model, masks, trained, device)
    write_result(place, result.to_dict())
    in_phases.tidy(place)
    return result


def labelled(config: RunConfig, dataset: Dataset) -> Dataset:
    """The data to train on: with its own labels, or with the same for every run, shuffled."""
    return dataset.with_shuffled_labels() if config.labels == SHUFFLED else dataset


def prepare(
    config: RunConfig,
    dataset: Dataset,
    device: torch.device | str = "cpu",
    *,
    saved: Path | None = None,
) -> tuple[nn.Module, Masks | None]:
    """The network as training begins: drawn, pruned, and drawn again if the protocol says so.

    `saved`: a file with this run's masks, if there is one, in place of scoring again.
    """
    return _pruned(config, dataset, *draw(config, device, saved=saved))


def draw(
    config: RunConfig, device: torch.device | str = "cpu", *, saved: Path | None = None
) -> tuple[nn.Module, Masks | None]:
    """The network before any data is read: as it will be scored.

    With its masks in the file `saved`, or with none to come, it is drawn as it will be trained.
    """
    there = config.sparsity and saved is not None and exists(saved)
    masks = Masks.load(saved) if saved is not None and there else None
    scored = config.sparsity and masks is None
    chosen = _scored_draw(config) if scored else _trained_draw(config)
    model = draw_network(config.model, config.dataset, **chosen).to(device)
    if masks is not None:
        masks.apply(model)
    return model, masks


def prune_drawn(config: RunConfig, dataset: Dataset, model: nn.Module) -> Masks:
    """Prune the network that `draw` returned, and draw it again if the protocol says so."""
    masks = prune_network(config, dataset, model).with_provenance(
        protocol=config.protocol,
        seeds=seeds_of(config),
        dataset=dataset.name,
        model=config.model,
    )
    masks.apply(model)  # again, so that the model knows as much of their origin as the file will
    if config.protocol == "redraw":  # the model holds its masks, so that the new draw obeys them
        redraw_network(model, config.model, config.dataset, **_trained_draw(config))
    return masks


def _pruned(
    config: RunConfig, dataset: Dataset, model: nn.Module, masks: Masks | None
) -> tuple[nn.Module, Masks | None]:
    """What `draw` returned, pruned if the run prunes and the masks are not there already."""
    if masks is None and config.sparsity:
        masks = prune_drawn(config, dataset, model)
    return model, masks


def _scored_draw(config: RunConfig) -> dict[str, Any]:
    return {"initializer": config.initializer, "seed": seeds_of(config)["scored_draw"]}


def _trained_draw(config: RunConfig) -> dict[str, Any]:
    return {"initializer": config.train_initializer, "seed": seeds_of(config)["trained_draw"]}


def scoring_batches(
    config: RunConfig, dataset: Dataset
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of training images to score on, chosen by the run's seed.

    They are not augmented, and none of them is in the validation part.
    """
    train_part, _ = dataset.split_validation(config.training.validation)
    wanted = config.score_batches * config.score_batch_size
    if wanted > len(train_part):
        raise InputError(
            f"{config.score_batches} scoring batches of {config.score_batch_size} are {wanted:,} "
            f"images, but {dataset.name} has {len(train_part):,} to train on: ask for fewer."
        )
    batches = replace(dataset, augment=None).training_batches(
        config.score_batch_size, split=train_part, seed=seeds_of(config)["scoring_batch"]
    )
    return islice(batches, config.score_batches)


def prune_network(config: RunConfig, dataset: Dataset, model: nn.Module) -> Masks:
    """Prune a network as the run says, on the run's scoring batches."""
    in_phases.require_scores(config)
    device = device_of(model)
    # A list, because scoring may need them a second time to tell which parts start at zero.
    batches = [(x.to(device), y.to(device)) for x, y in scoring_batches(config, dataset)]
    # A network with dropout draws while it is scored, and so do random masks.
    with seeded(config.seed, device):
        return prune_controlled(
            model,
            batches,
            sparsity=config.sparsity,
            method=config.method,
            control=config.control,
            granularity=config.granularity,
            scope=config.scope,
            floor=config.floor,
            budget=config.budget,
            biases=config.biases,
            scoring=config.scoring,
        )


def _write_start(place: Path, config: RunConfig, model: nn.Module, masks: Masks | None) -> None:
    """Write what is known before training; the trainer itself keeps the masks."""
    write_json(place / layout.CONFIG, config.to_dict())
    if masks is not None:
        write_json(place / layout.REPORT, report(model, masks).to_dict())
