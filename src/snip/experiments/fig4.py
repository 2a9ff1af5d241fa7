"""Figures 4 and B: does a pruned LeNet-5-Caffe memorise labels that were dealt out at random?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snip.common.text import percent
from snip.experiments.kinds import Experiment, Record, Row
from snip.experiments.measures.curves import Curves, at_end
from snip.experiments.records.drawing import COLOURS, finish, new_figure, plain_axes
from snip.runs import RunConfig
from snip.runs.config import SHUFFLED, TRUE
from snip.training import paper_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODEL, DECAY = "lenet-5-caffe", 5e-4
SPARSITIES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99)
CURVES = Curves(("train_loss", "train_error"))
# The curves that the paper's claim is about: on random labels, and on true ones.
NAMES = {
    "dense": "reference, random labels",
    "decayed": "reference with L2, random labels",
    "pruned": "pruned 99%, random labels",
    "true": "pruned 99%, true labels",
}


def _config(sparsity: float, labels: str, decay: float) -> RunConfig:
    # The paper's rate of 0.1 makes the dense network diverge; all have the same one here.
    train = replace(paper_schedule("mnist"), lr=0.02, weight_decay=decay)
    protocol = "redraw" if sparsity else "train-scored"
    return RunConfig(MODEL, sparsity, protocol=protocol, labels=labels, train=train)


def rows_4() -> list[Row]:
    """The five curves of figure 4."""
    return [
        Row("reference, true labels", _config(0, TRUE, 0.0)),
        Row(NAMES["true"], _config(0.99, TRUE, 0.0)),
        Row(NAMES["dense"], _config(0, SHUFFLED, 0.0)),
        Row(NAMES["decayed"], _config(0, SHUFFLED, DECAY)),
        Row(NAMES["pruned"], _config(0.99, SHUFFLED, 0.0)),
    ]


def rows_b() -> list[Row]:
    """Random labels over the sparsity, from the reference on."""
    reference = Row("reference", _config(0, SHUFFLED, 0.0))
    pruned = [Row(f"{100 * s:g}%", _config(s, SHUFFLED, 0.0)) for s in SPARSITIES]
    return [reference, *pruned]


def _colour(record: Record, index: int) -> Any:
    """Of a row: figure B's follow the sparsity from dark to bright, figure 4's are unlike."""
    if record["experiment"] != FIGB.name:
        return COLOURS[index % len(COLOURS)]
    from matplotlib import colormaps

    return colormaps["viridis"](0.9 * index / max(1, len(record["rows"]) - 1))


def draw(record: Record) -> Figure:
    """Training loss over the steps, a line per seed and a colour per row."""
    figure = new_figure(8.5, 4.4)
    axes = figure.subplots()
    for index, (row, curves) in enumerate(zip(record["rows"], CURVES.unpack(record), strict=True)):
        colour = _colour(record, index)
        for number, (steps, losses, _) in enumerate(curves):
            axes.plot(
                steps,
                losses,
                color=colour,
                linewidth=1.2,
                linestyle="--" if row["config"].get("labels") == TRUE and index else "-",
                marker=".",
                markersize=3,
                alpha=1.0 if number == 0 else 0.4,
                label=row["label"] if number == 0 else None,
            )
    plain_axes(axes)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training steps", fontsize=9)
    axes.set_ylabel("training loss (cross-entropy)", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return finish(figure, record, "A line per seed.")


COLUMNS = (
    ("training loss at the end", lambda row, _: f"{at_end(row, 'train_loss'):.4f}"),
    ("training error at the end", lambda row, _: percent(at_end(row, "train_error"))),
)
NOTES = (
    "Rate 0.02 for all, because the dense network diverges at the paper's 0.1; no weight decay but "
    "in the row with L2 (5e-4). Scores come from true labels; test labels are true, so that with "
    "random labels the test error is that of guessing",
    "Training loss and error are means over the steps since the last evaluation, an epoch of them",
)
FIG4 = Experiment(
    "fig4",
    "Figure 4: lenet-5-caffe on true and on random labels, MNIST",
    rows_4,
    seeds=1,
    columns=COLUMNS,
    notes=NOTES,
    keep=CURVES.keep,
    unpack=CURVES.unpack,
    draw=draw,
)
FIGB = replace(
    FIG4,
    name="figB",
    title="Appendix B: random labels over the sparsity, lenet-5-caffe, MNIST",
    rows=rows_b,
)
