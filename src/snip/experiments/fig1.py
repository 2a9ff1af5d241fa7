"""Figure 1: test error of both LeNets over the sparsity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snip.experiments.kinds import HELD_OUT, Experiment, Record, Row
from snip.experiments.records.drawing import (
    PAPER_GREY,
    RULES,
    error_axes,
    finish,
    new_figure,
    spread,
)
from snip.experiments.table1 import CONV, CONV_TRAIN, SEEDS, SMALL, SNIP
from snip.runs import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = ("o-", ".--")  # where both rules choose the same, both can be seen
SPARSITIES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
# The paper's figure ends at 95%, its Table 1 goes further, with other trainings than the reference.
FURTHER = {SMALL: (0.98,), CONV: (0.98, 0.99)}
# The figure has no numbers: these are from the tables and from figure 3.
PAPER = {
    (SMALL, 0.0): "1.7", (SMALL, 0.9): "1.64", (CONV, 0.0): "0.9",
    **{(model, sparsity): error for model, sparsity, error in SNIP},
}  # fmt: skip


def rows() -> list[Row]:
    """Both networks at every sparsity; 0 is the reference, which nothing is pruned of."""
    made = []
    for model, train in ((SMALL, None), (CONV, CONV_TRAIN)):
        for sparsity in (*SPARSITIES, *FURTHER[model]):
            protocol = "redraw" if sparsity else "train-scored"
            config = RunConfig(model, sparsity, protocol=protocol, train=train)
            label = f"{100 * sparsity:g}%" if sparsity else "reference"
            paper, marked = PAPER.get((model, sparsity), ""), train is None
            made.append(Row(label, config, paper, marked=marked, seeds=SEEDS[model]))
    return made


def draw(record: Record) -> Figure:
    """Mean and spread of the error against sparsity, a panel per network."""
    figure = new_figure(9.5, 4.0)
    for axes, model in zip(figure.subplots(1, 2), (SMALL, CONV), strict=True):
        found = [r for r in record["rows"] if r["config"]["model"] == model and r["runs"]]
        x = [100 * row["config"]["sparsity"] for row in found]
        for line, (rule, (colour, name)) in zip(LINES, RULES.items(), strict=True):
            means = [row[rule]["mean"] for row in found]
            stds = [spread(row[rule]) for row in found]
            low, high = ([m + s * d for m, d in zip(means, stds, strict=True)] for s in (-1, 1))
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(x, means, line, color=colour, markersize=4, linewidth=1.3, label=name)
        known = [(100 * s, float(e)) for (m, s), e in PAPER.items() if m == model]
        if known and record["scale"] == 1:
            x_paper, y_paper = zip(*known, strict=True)
            # Hollow where the paper's network was trained in another way than ours.
            fill = "full" if model == SMALL else "none"
            look = {"color": PAPER_GREY, "markersize": 5, "fillstyle": fill}
            axes.plot(x_paper, y_paper, "D", **look, label="the paper")
        error_axes(axes, model)
        axes.set_ylim(bottom=0)
        axes.set_xlim(-3, 100)
    counts = sorted({len(row["runs"]) for row in record["rows"] if row["runs"]}) or [0]
    seeds = f"Bands: one standard deviation over the {counts[0]} to {counts[-1]} seeds of a point."
    hollow = "Hollow: another training than ours." if record["scale"] == 1 else ""
    return finish(figure, record, seeds, hollow)


FIG1 = Experiment(
    "fig1",
    "Figure 1: LeNets pruned at varying sparsity, MNIST",
    rows,
    draw=draw,
    notes=(
        "Protocol redraw. lenet-300-100: the paper's schedule; lenet-5-caffe: 20 epochs at the "
        "rate 0.02, because the dense one diverges at the paper's 0.1; "
        "five seeds of it in place of 20, and no marks against the paper's numbers",
        "The paper's points are not read off its figure: they are of its tables, and at 90% of its "
        "figure 3 at batch 100",
        HELD_OUT,
    ),
)
