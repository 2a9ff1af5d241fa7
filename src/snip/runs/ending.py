"""The end of a run: its result, from what the training and the folder hold."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from snip.common.files import exists
from snip.common.machine import commit
from snip.data.dataset import Dataset
from snip.engine.choice import Choice
from snip.masks import Masks, versions
from snip.network.network import prunable_parameters
from snip.runs import in_phases
from snip.runs.config import RunConfig
from snip.runs.guessing import chance_error
from snip.runs.result import RunResult, environment
from snip.runs.seeds import seeds_of
from snip.training.journal import ENGINE
from snip.training.start import read_choice
from snip.training.trainer import TrainResult


def result_of(
    config: RunConfig,
    place: Path,
    dataset: Dataset,
    model: nn.Module,
    masks: Masks | None,
    trained: TrainResult,
    device: torch.device,
) -> RunResult:
    """The result of a run whose training has ended."""
    total = sum(p.numel() for p in prunable_parameters(model).values())
    return RunResult(
        config=config,
        folder=place,
        sparsity_asked=config.sparsity,
        sparsity=masks.sparsity if masks else 0.0,
        kept=masks.kept if masks else total,
        total=masks.total if masks else total,
        test_error=trained.selected.test_error,
        test_loss=trained.selected.test_loss,
        valid_error=trained.selected.valid_error,
        selected_iteration=trained.selected.iteration,
        final_test_error=trained.final.test_error,
        best_test_error=trained.best_test_error,
        protocol=config.protocol,
        seeds=seeds_of(config),
        dataset_note=dataset.note,
        seconds=trained.seconds,
        cpu_seconds=trained.cpu_seconds,
        steps_per_second=trained.steps_per_second,
        versions=versions(),
        commit=commit(),
        **environment(device),
        engine=_engine(place).to_dict(),
        chance_error=chance_error(dataset.test.labels),
        test_images=len(dataset.test),
        note=None if masks is None else masks.provenance.note,
        cost=in_phases.costs(config, place),
    )


def _engine(place: Path) -> Choice:
    """The engine that ran; a training that had nothing to choose leaves no file."""
    return read_choice(place / ENGINE)[0] if exists(place / ENGINE) else Choice("dense")
