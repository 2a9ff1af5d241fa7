"""Times of pruned networks beside the dense one, taking turns, for a quiet machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import nn

from snip.common.timing import Work, best_times
from snip.data import load
from snip.data.dataset import Dataset
from snip.engine.accelerate import accelerate
from snip.engine.fused.step import training_step
from snip.experiments.kinds import Record
from snip.export.shrink import shrink
from snip.masks import versions
from snip.runs import RunConfig, prepare
from snip.runs.result import environment
from snip.training.parts import data_for, make_optimizer, set_learning_rate

DENSE = "dense"
Batch = tuple[torch.Tensor, torch.Tensor]


def timing(
    dense: RunConfig,
    pruned: Mapping[str, RunConfig],
    seconds: float,
    data_dir: Path | None,
    *,
    inference: bool = True,
) -> Record:
    """Milliseconds of a training step, and of inference, for the dense and each pruned network."""
    dataset = load(dense.dataset, data_dir=data_dir)
    batch = next(iter(data_for(dataset, dense.training).train))
    configs = {DENSE: dense, **pruned}
    ways: dict[str, Callable[[nn.Module, RunConfig, Batch], Work]] = {"step_ms": _step}
    if inference:
        ways["inference_ms"] = _inference
    found: Record = {}
    for name, start in ways.items():
        work = {
            label: start(_network(config, dataset, batch, training=start is _step), config, batch)
            for label, config in configs.items()
        }
        best = best_times(work, rounds=3, seconds=seconds)
        found[name] = {label: round(value * 1e3, 4) for label, value in best.items()}
    return found | {"versions": versions(), **environment(torch.device("cpu"))}


def _network(config: RunConfig, dataset: Dataset, batch: Batch, *, training: bool) -> nn.Module:
    """The network as it runs: dense, with whole units taken out, or on the sparse engine."""
    model, masks = prepare(config, dataset)
    model.train(training)
    if masks is None:
        return model
    if config.granularity == "channel":
        return shrink(model, batch[0])
    return accelerate(model, batch)


def _step(model: nn.Module, config: RunConfig, batch: Batch) -> Work:
    optimizer = make_optimizer(model.train(), config.training)
    # The work is the same, and training on one batch over and over cannot diverge.
    set_learning_rate(optimizer, 0.0)
    return partial(training_step(model, optimizer), *batch)


def _inference(model: nn.Module, _config: RunConfig, batch: Batch) -> Work:
    model.eval()

    def forward() -> object:
        with torch.inference_mode():
            return model(batch[0])

    return forward
