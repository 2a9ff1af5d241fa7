"""Figure 3: the size of the scoring batch, LeNet-300-100 at 90%."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snip.experiments.kinds import HELD_OUT, Experiment, Record, Row
from snip.experiments.measures.maps import class_means, correlation, map_of, packed, unpacked
from snip.experiments.records.drawing import finish, new_figure
from snip.experiments.records.summary import shown
from snip.reports.pictures import COLOUR_MAP
from snip.runs import RunConfig, RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORRELATION = "correlation"  # of a run: of its map with the mean image
PAPER = {1: "1.94", 10: "1.72", 100: "1.64", 1_000: "1.56", 10_000: "1.40"}


def rows() -> list[Row]:
    """One row per size of the scoring batch; the training's batches stay as they are."""
    return [
        Row(f"batch {size:,}", RunConfig("lenet-300-100", 0.9, protocol="redraw",
            score_batch_size=size), paper)
        for size, paper in PAPER.items()
    ]  # fmt: skip


def keep(result: RunResult, data_dir: Path | None) -> Record:
    """How like the mean training image the surviving connections are; of one seed the map too."""
    survivors = map_of(result)
    mean = class_means("mnist", data_dir).mean(0)
    kept: Record = {CORRELATION: correlation(survivors, mean)}
    return kept | ({"map": packed(survivors)} if result.config.seed == 0 else {})


def _correlation(row: Record, _record: Record) -> str:
    return f"{statistics.mean(run[CORRELATION] for run in row['runs']):.3f}"


def measure(data_dir: Path | None, _seeds: int) -> Record:
    """The mean training image, which the maps come near."""
    return {"mean": packed(class_means("mnist", data_dir).mean(0))}


def unpack(record: Record) -> tuple[list[list[torch.Tensor]], list[torch.Tensor]]:
    """The maps of each row, and the mean training image, if they are there."""
    rows = [[unpacked(run["map"]) for run in row["runs"] if "map" in run] for row in record["rows"]]
    return rows, [unpacked(record["measured"]["mean"])] if record.get("measured") else []


def draw(record: Record) -> Figure:
    """The map of seed 0 for every size with the errors below, and the mean training image."""
    figure = new_figure(11.0, 3.1)
    panels: Any = figure.subplots(1, len(PAPER) + 1)
    for axes in panels:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    maps, means = unpack(record)
    for axes, row, found in zip(panels, record["rows"], maps, strict=False):
        for picture in found[:1]:
            axes.imshow(picture, cmap=COLOUR_MAP, interpolation="nearest", vmin=0)
        most = f" (up to {float(found[0].max()):.0%})" if found else ""
        axes.set_title(f"{row['label']}{most}", fontsize=9)
        said = [f"the paper: {row['paper']}"] if record["scale"] == 1 else []
        if row["runs"]:
            counts = f"{len(row['runs'])} of {row['asked']} seeds"
            said.append(f"ours: {shown(row['selected'])}\n({counts})")
        axes.set_xlabel("\n".join(said), fontsize=8)
    for mean in means:
        panels[-1].imshow(mean, cmap=COLOUR_MAP, interpolation="nearest", vmin=0)
    panels[-1].set_title("mean training image", fontsize=9)
    key = "Maps: seed 0; bright is the largest share of a pixel's connections that survive."
    return finish(figure, record, key, "Errors in %, selected on validation.")


FIG3 = Experiment(
    "fig3",
    "Figure 3: the size of the scoring batch, lenet-300-100 at 90%, MNIST",
    rows,
    seeds=20,
    columns=(("correlation with the mean image", _correlation),),
    notes=("Protocol redraw, the paper's schedule", HELD_OUT),
    keep=keep,
    measure=measure,
    unpack=unpack,
    draw=draw,
)
