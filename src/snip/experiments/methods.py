"""Ten methods that prune at initialisation, at five sparsities, with sanity controls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snip.experiments.kinds import Experiment, Record, Row
from snip.experiments.records.comparison import diverged
from snip.experiments.records.drawing import (
    COLOURS,
    MARKERS,
    finish,
    logarithmic_errors,
    new_figure,
    plain_axes,
)
from snip.experiments.table1 import CONV, CONV_SHORT, SMALL
from snip.methods import METHODS, AtInitialisation
from snip.methods.controls import CONTROLS
from snip.reports.pictures import INK
from snip.runs import RunConfig, RunResult
from snip.runs.folder import read_report
from snip.training import paper_schedule, shortened

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPARSITIES = (0.9, 0.95, 0.98, 0.99, 0.995)
# At the paper's rate of 0.1 six of the ten methods diverge on lenet-5-caffe at 90%.
TRAIN = {SMALL: shortened(paper_schedule("mnist"), 25_000), CONV: CONV_SHORT}
CUT_OFF = "cut_off"  # of a run: the classes that no input reaches
CONTROLLED = (SMALL, 0.98)  # where the controls are run
CROSSES = "Crosses: seeds diverged, and are not in the mean."
METHODS_HERE = tuple(name for name, one in METHODS.items() if isinstance(one, AtInitialisation))


def rows() -> list[Row]:
    """Every method at every sparsity on both networks, then the controls."""
    made = [
        Row(name, _config(model, sparsity, name))
        for model in TRAIN
        for sparsity in SPARSITIES
        for name in METHODS_HERE
    ]
    for name in METHODS_HERE:
        for control in CONTROLS:
            config = _config(*CONTROLLED, name, control)
            made.append(Row(f"{name}, {control}", config, about={"control": control}))
    return made


def _config(model: str, sparsity: float, method: str, control: str = "none") -> RunConfig:
    return RunConfig(model, sparsity, method=method, control=control, train=TRAIN[model])


def keep(result: RunResult, _data_dir: Path | None) -> Record:
    """How many classes no input reaches: of these networks nothing is repaired."""
    return {CUT_OFF: len(read_report(result.folder, "dead_outputs", list))}


def _cut_off(row: Record, _record: Record) -> str:
    """The classes that are cut off, seed by seed; older runs have not noted it."""
    counts = [run.get(CUT_OFF) for run in row["runs"]]
    return "-" if None in counts else ", ".join(str(count) for count in counts)


def draw(record: Record) -> Figure:
    """Error against sparsity for each network, and the controls as points in a row per method."""
    figure = new_figure(11.0, 7.2)
    run = {row["config"]["model"] for row in record["rows"] if row["runs"]}
    models = [model for model in TRAIN if model in run] or list(TRAIN)
    places: Any = [models, ["controls"] * len(models)]
    panels = figure.subplot_mosaic(places, height_ratios=(1.25, 1))
    for model in models:
        _draw_curves(panels[model], record, model)
    beside = {"fontsize": 8, "frameon": False, "loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    panels[models[-1]].legend(**beside)
    _draw_controls(panels["controls"], record)
    panels["controls"].legend(**beside)
    crosses = [CROSSES] if any(map(diverged, record["rows"])) else []
    return finish(figure, record, "Bars: the lowest and the highest seed.", *crosses)


def _draw_curves(axes: Axes, record: Record, model: str) -> None:
    for index, method in enumerate(METHODS_HERE):
        rows = [
            row
            for row in record["rows"]
            if row["label"] == method and row["config"]["model"] == model and row["runs"]
        ]
        if rows:
            axes.errorbar(
                [100 * (1 - row["config"]["sparsity"]) for row in rows],
                [row["selected"]["mean"] for row in rows],
                yerr=[list(ends) for ends in zip(*map(_spread, rows), strict=True)],
                label=method,
                color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index % len(MARKERS)],
                markersize=4,
                linewidth=1.2,
                linestyle="-" if index < len(COLOURS) else "--",
                capsize=2,
            )
    _draw_diverged(axes, record, model)
    plain_axes(axes, model)
    axes.set_xscale("log")
    axes.invert_xaxis()
    kept = [100 * (1 - sparsity) for sparsity in SPARSITIES]
    axes.set_xticks(kept, labels=[f"{100 * s:g}%" for s in SPARSITIES])
    axes.minorticks_off()
    logarithmic_errors(axes)
    axes.set_xlabel("sparsity", fontsize=9)
    axes.set_ylabel("test error (logarithmic)", fontsize=9)


def _draw_diverged(axes: Axes, record: Record, model: str) -> None:
    """At the top the methods of which seeds diverged, by name: their means are of the others."""
    names: dict[float, list[str]] = {}
    for row in record["rows"]:
        if diverged(row) and row["config"]["model"] == model and row["label"] in METHODS_HERE:
            names.setdefault(100 * (1 - row["config"]["sparsity"]), []).append(row["label"])
    for kept, found in names.items():
        text = "\n".join(f"\u00d7 {name}" for name in found)
        axes.annotate(text, (kept, 100), fontsize=7, ha="left", va="top", color=INK)
        axes.plot(kept, 100, alpha=0)  # text alone would not be on the axes


def _spread(row: Record) -> tuple[float, float]:
    """How far the lowest and the highest seed are from the mean: no deviation fits a logarithm."""
    errors = [100 * run["test_error"] for run in row["runs"]]
    return row["selected"]["mean"] - min(errors), max(errors) - row["selected"]["mean"]


def _draw_controls(axes: Axes, record: Record) -> None:
    model, sparsity = CONTROLLED
    kinds = ("none", *CONTROLS)
    width = 0.8 / len(kinds)
    for index, control in enumerate(kinds):
        for place, method in enumerate(METHODS_HERE):
            label = method if control == "none" else f"{method}, {control}"
            found = [
                row
                for row in record["rows"]
                if row["label"] == label
                and (row["config"]["model"], row["config"]["sparsity"]) == CONTROLLED
            ]
            for row in found:
                _draw_control(axes, row, place - 0.4 + (index + 0.5) * width, index)
    for index, control in enumerate(kinds):
        name = "the method" if control == "none" else control
        axes.plot([], [], MARKERS[index], color=COLOURS[index], label=name)
    plain_axes(axes, f"Sanity controls: {model} at {100 * sparsity:g}%")
    logarithmic_errors(axes)
    axes.set_xticks(range(len(METHODS_HERE)), labels=METHODS_HERE, fontsize=8)
    axes.set_ylabel("test error (logarithmic)", fontsize=9)


def _draw_control(axes: Axes, row: Record, place: float, index: int) -> None:
    """A point with the span of its seeds: a logarithm has no zero for a bar to begin at."""
    colour = COLOURS[index]
    if row["runs"]:
        mean, ends = row["selected"]["mean"], [[end] for end in _spread(row)]
        axes.errorbar(
            place, mean, ends, color=colour, marker=MARKERS[index % len(MARKERS)], capsize=1.5
        )
    if diverged(row):
        axes.plot(place, 100, "x", color=colour, markersize=6)


METHODS_EXPERIMENT = Experiment(
    "methods",
    "Ten methods at initialisation, MNIST",
    rows,
    seeds=3,
    columns=(("classes cut off, by seed", _cut_off),),
    keep=keep,
    draw=draw,
    notes=(
        "lenet-300-100: the paper's schedule squeezed into 25,000 steps; lenet-5-caffe: ten epochs "
        "at the rate 0.02, because at the paper's 0.1 most of the methods diverge at 90%; the "
        "scored weights are trained",
        "All methods score on one batch of 100 images, the same in every round, biases compete "
        "with weights, and masks that cut classes off are not repaired, as in the paper. The "
        "authors of GraSP score ten images of each class, those of SNIP-it five batches a round, "
        "and all but SNIP's weights alone",
        "Controls: the method's masks shuffled in each parameter, random at its densities, around "
        "re-drawn weights, and of its scores turned upside down",
    ),
)
