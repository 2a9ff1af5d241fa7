"""What whole units, 2:4 and blocks cost in error and buy in time, beside single connections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from snip.experiments.kinds import Experiment, Record, Row
from snip.experiments.measures.times import DENSE, timing
from snip.experiments.records.drawing import (
    COLOURS,
    MARKERS,
    error_axes,
    finish,
    new_figure,
    spread,
)
from snip.experiments.table1 import CONV, CONV_SHORT
from snip.runs import RunConfig
from snip.training import TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PATTERN, HALF = "2:4", 0.5  # the pattern has a sparsity of its own
GRANULARITIES = ("element", "4x4", "channel", PATTERN)
WIDTHS = (32, 0, 64, 0, 128, 128, 0, 256, 256, 0, 256, 256, 0)  # 0 halves the picture
SMALL_VGG = "snip.experiments.granularity:small_vgg"


def small_vgg() -> nn.Module:
    """VGG-11 of half the width for CIFAR-10, with batch norm: 2.3 million connections."""
    layers: list[nn.Module] = []
    before = 3
    for width in WIDTHS:
        if not width:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10))


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and where it is measured."""

    model: str
    dataset: str
    train: TrainConfig
    sparsities: tuple[float, ...]
    seeds: int = 3


# The VGG, whose steps are ten times as long, is trained for three epochs only, and once.
CASES = (
    Case(CONV, "mnist", CONV_SHORT, (HALF, 0.9, 0.98)),
    Case(
        SMALL_VGG, "cifar-10", TrainConfig(lr=0.05, iterations=1_350, lr_drops=(810, 1_148)),
        (HALF, 0.9, 0.95), seeds=1,
    ),
)  # fmt: skip


def rows() -> list[Row]:
    """Each network dense, and at each sparsity by every granularity."""
    return [
        Row(_label(config), config, seeds=case.seeds) for case in CASES for config in _configs(case)
    ]


def _configs(case: Case) -> Iterator[RunConfig]:
    yield RunConfig(case.model, 0, case.dataset, train=case.train)
    for sparsity in case.sparsities:
        for granularity in GRANULARITIES:
            if granularity != PATTERN or sparsity == HALF:
                yield RunConfig(
                    case.model, sparsity, case.dataset, granularity=granularity, train=case.train
                )


def _label(config: RunConfig) -> str:
    return f"{config.granularity} {100 * config.sparsity:g}%" if config.sparsity else DENSE


def time_all(data_dir: Path | None, seconds: float) -> Record:
    """Times of all networks of one seed."""
    found = {}
    for case in CASES:
        dense, *pruned = _configs(case)
        labelled = {_label(one): one for one in pruned}
        found[case.model] = timing(dense, labelled, seconds, data_dir)
    return found


def _speedup(name: str, row: Record, record: Record) -> str:
    """How many times as fast as dense; "-" where nothing was timed."""
    times = record.get("timing", {}).get(row["config"]["model"], {}).get(name, {})
    if row["label"] not in times:  # a row may be newer than the times
        return "-"
    return f"{times[DENSE] / times[row['label']]:.2f}x"


def draw(record: Record) -> Figure:
    """Error over the sparsity for each granularity, a panel per network."""
    figure = new_figure(9.5, 4.0)
    for axes, case in zip(figure.subplots(1, len(CASES)), CASES, strict=True):
        found = [r for r in record["rows"] if r["config"]["model"] == case.model and r["runs"]]
        for index, granularity in enumerate(GRANULARITIES):
            points = [
                row
                for row in found
                if row["config"]["sparsity"] and row["config"]["granularity"] == granularity
            ]
            axes.errorbar(
                [100 * row["config"]["sparsity"] for row in points],
                [row["selected"]["mean"] for row in points],
                yerr=[spread(row["selected"]) for row in points],
                label=granularity, color=COLOURS[index], marker=MARKERS[index], markersize=5,
                linewidth=1.2, capsize=2,
            )  # fmt: skip
        for row in found:
            if row["label"] == DENSE:
                axes.axhline(row["selected"]["mean"], color=COLOURS[-1], linewidth=0.8, label=DENSE)
        error_axes(axes, case.model.rpartition(":")[2])
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return finish(figure, record, "Bars: one standard deviation over the seeds.")


GRANULARITY = Experiment(
    "granularity",
    "What is removed whole: error by granularity",
    rows,
    columns=(
        ("step", lambda row, record: _speedup("step_ms", row, record)),
        ("inference", lambda row, record: _speedup("inference_ms", row, record)),
    ),
    draw=draw,
    time=time_all,
    notes=(
        "Trained for ten epochs at 0.02 (lenet-5-caffe) and three at 0.05 (small_vgg, one seed, so "
        "that differences of a point or two tell nothing); the scored weights are trained",
        "Times over the dense network in torch at the training's batch: whole units by snip.shrink "
        "in torch, the rest by snip.accelerate; 2:4 is made for GPUs. --time measures them",
    ),
)
