"""Table 2 and the appendix's table for Tiny-ImageNet: many architectures, dense and pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from snip.data import DATASETS
from snip.experiments.kinds import HELD_OUT, Experiment, Record, Row
from snip.experiments.measures.curves import Curves
from snip.experiments.records.comparison import is_dense_of, paper_rise
from snip.experiments.records.drawing import (
    COLOURS,
    PAPER_GREY,
    finish,
    logarithmic_errors,
    new_figure,
    plain_axes,
)
from snip.runs import RunConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CURVES = Curves(("test_error",))
DENSE, PRUNED = "dense", "pruned"
LOOKS = {DENSE: (COLOURS[0], "-"), PRUNED: (COLOURS[1], "--")}  # of lines that fall together
PER_LINE = 4  # panels beside each other
HARDLY_LEARNT = 90  # percent: where the axis of a trial begins if all of its errors are above
# Of one row of a network: the record's, and the steps and errors of its runs.
Curve = tuple[Record, list[torch.Tensor]]
PAPER_KEPT = "paper_kept"  # of a pruned row: the connections that the paper says are left
# Network, sparsity; of the paper: connections kept, error of the dense and of the pruned network.
TABLE2_ROWS = (
    ("alexnet-s", 0.9, "507k", "14.12", "14.99"),
    ("alexnet-b", 0.9, "849k", "13.92", "14.50"),
    ("vgg-c", 0.95, "526k", "6.82", "7.27"),
    ("vgg-d", 0.95, "762k", "6.76", "7.09"),
    ("vgg-like", 0.97, "449k", "8.26", "8.00"),
    ("wrn-16-8", 0.95, "548k", "6.21", "6.63"),
    ("wrn-16-10", 0.95, "856k", "5.91", "6.43"),
    ("wrn-22-8", 0.95, "858k", "6.14", "5.85"),
    ("lstm-s", 0.95, "6.8k", "1.88", "1.57"),
    ("lstm-b", 0.95, "26.8k", "1.15", "1.35"),
    ("gru-s", 0.95, "5.2k", "1.87", "2.41"),
    ("gru-b", 0.95, "20.2k", "1.71", "1.52"),
)
TABLEC_ROWS = (
    ("alexnet-s", 0.9, "507k", "62.52", "65.27"),
    ("alexnet-b", 0.9, "849k", "62.76", "65.54"),
    ("vgg-c", 0.95, "526k", "56.49", "57.48"),
    ("vgg-d", 0.95, "762k", "56.85", "57.00"),
    ("vgg-like", 0.95, "749k", "54.86", "55.73"),
)


def pairs(networks: Sequence[tuple[str, float, str, str, str]], dataset: str = "") -> list[Row]:
    """Each network dense and pruned, by the paper's schedule for its data set."""
    made = []
    for model, sparsity, kept, dense, pruned in networks:
        config = RunConfig(model, sparsity, dataset, protocol="redraw")
        made.append(Row(DENSE, RunConfig(model, 0, dataset), dense))
        made.append(Row(PRUNED, config, pruned, about={PAPER_KEPT: kept}))
    return made


def _kept(row: Record, _record: Record) -> str:
    paper = f" ({row[PAPER_KEPT]})" if PAPER_KEPT in row else ""
    return f"{row['runs'][0]['kept']:,}{paper}"


def _difference(row: Record, record: Record) -> str:
    """What pruning costs in points, ours and the paper's."""
    if row["label"] == DENSE:
        return "-"
    model = row["config"]["model"]
    (dense,) = (one for one in record["rows"] if is_dense_of(one, model))
    paper = paper_rise(row, dense)
    assert paper is not None  # every row of these tables has a number of the paper's
    if not dense["runs"]:
        return f"({paper:+.2f})"
    return f"{row['selected']['mean'] - dense['selected']['mean']:+.2f} ({paper:+.2f})"


def draw(record: Record) -> Figure:
    """Test error over the steps, dense and pruned side by side, a panel per network."""
    panels = _panels(record)
    wide = min(PER_LINE, max(1, len(panels)))
    deep = max(1, -(-len(panels) // wide))
    figure = new_figure(max(7.5, 3.2 * wide), 0.9 + 2.7 * deep)
    places = list(figure.subplots(deep, wide, squeeze=False).flat)
    whole, least = record["scale"] == 1, _least_error(panels)
    for axes, (model, rows) in zip(places, panels.items(), strict=False):
        _draw_curves(axes, rows)
        plain_axes(axes, model)
        if whole:
            _add_paper(axes, rows)
        else:
            _add_guessing(axes, rows, least)
        _name_axes(axes, whole=whole)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    dotted = "the paper's error at the end" if whole else "the error of guessing"
    return finish(
        figure, record, f"A line per seed. Dotted: {dotted}.", part=_part(record, list(panels))
    )


def _panels(record: Record) -> dict[str, list[Curve]]:
    """What each panel shows, by its network; one that was not run has none."""
    panels: dict[str, list[Curve]] = {}
    for row, runs in zip(record["rows"], CURVES.unpack(record), strict=True):
        if runs:
            panels.setdefault(row["config"]["model"], []).append((row, runs))
    return panels


def _part(record: Record, shown: list[str]) -> str:
    """Which of the table's networks the figure shows, if not all, or which not if that is shorter:
    the title is that of all."""
    every = list(dict.fromkeys(row["config"]["model"] for row in record["rows"]))
    missing = [model for model in every if model not in shown]
    if not shown or not missing:
        return ""
    few = shown if len(shown) <= len(missing) else missing
    names = f"{'all but ' if few is missing else ''}{', '.join(few)}"
    return f"{len(shown)} of {len(every)} networks: {names}"


def _least_error(panels: Mapping[str, list[Curve]]) -> int:
    """Where the axes of a trial begin, in percent; from 0, high errors lie on their upper edge."""
    runs = [run for rows in panels.values() for _, runs in rows for run in runs]
    lowest = min((100 * float(errors.min()) for _, errors in runs), default=0)
    return HARDLY_LEARNT if lowest > HARDLY_LEARNT else 0


def _draw_curves(axes: Any, rows: Sequence[Curve]) -> None:
    for row, runs in rows:
        colour, line = LOOKS[row["label"]]
        sparsity = row["config"]["sparsity"]
        name = f"{row['label']} {100 * sparsity:g}%" if sparsity else row["label"]
        for number, (steps, errors) in enumerate(runs):
            axes.plot(
                steps,
                100 * errors,
                line,
                color=colour,
                linewidth=1.2,
                alpha=1.0 if number == 0 else 0.4,
                label=name if number == 0 else None,
            )


def _add_paper(axes: Any, rows: Sequence[Curve]) -> None:
    """The paper's errors, which only belong where the schedule is its own."""
    for row, _ in rows:
        if row["paper"]:
            colour, _ = LOOKS[row["label"]]
            axes.axhline(float(row["paper"]), color=colour, linestyle=":", linewidth=1)
    logarithmic_errors(axes)


def _add_guessing(axes: Any, rows: Sequence[Curve], least: int) -> None:
    """What a trial is held against: the error of a network that has learnt nothing.

    The axis is not logarithmic: on such an axis, differences of nothing would fill the panel.
    """
    classes = DATASETS[rows[0][0]["config"]["dataset"]].classes
    axes.axhline(100 * (1 - 1 / classes), color=PAPER_GREY, linestyle=":", linewidth=1, zorder=1)
    axes.set_ylim(least, 100)


def _name_axes(axes: Any, *, whole: bool) -> None:
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("training steps", fontsize=9)
    axes.set_ylabel(f"test error{' (logarithmic)' if whole else ', %'}", fontsize=9)
    axes.legend(fontsize=8, frameon=False)


COLUMNS = (("connections (the paper's)", _kept), ("pruned - dense (the paper's)", _difference))
TABLE2 = Experiment(
    "table2",
    "Table 2: architectures, CIFAR-10 and (recurrent networks) MNIST",
    lambda: pairs(TABLE2_ROWS),
    columns=COLUMNS,
    keep=CURVES.keep,
    unpack=CURVES.unpack,
    draw=draw,
    notes=(
        "Protocol redraw, the paper's schedules: 150,000 steps on CIFAR-10, 75,000 on MNIST",
        HELD_OUT,
    ),
)
TABLEC = replace(
    TABLE2,
    name="tableC",
    title="Appendix C: convolutional networks on Tiny-ImageNet",
    rows=lambda: pairs(TABLEC_ROWS, "tiny-imagenet"),
    notes=("Protocol redraw, the schedule of CIFAR-10; the appendix names none", HELD_OUT),
)
