"""What all figures of the experiments share: paper, colours, and how they are saved."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snip.experiments.kinds import Record
from snip.experiments.records.captions import what_was_run
from snip.reports.pictures import COLOURS as COLOURS
from snip.reports.pictures import INK, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_GREY = "#888888"
LETTERS_PER_INCH = 18  # of the text below a figure
TITLE_LETTERS_PER_INCH = 9  # of the bold lines above it
# Labels of a logarithmic axis of errors in percent: few if it spans many, else some more.
FEW_ERRORS = (0.5, 1, 2, 5, 10, 20, 50, 100)
MANY_ERRORS = (0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 25, 30, 35, 40, 50, 60, 70, 80, 90)
WIDE_SPAN = 8
FEWEST_LABELS, LABELS = 3, 5  # with fewer nobody can read a value off: about so many instead
MARKERS = "osD^vP*Xph"
# The rules by which a checkpoint is chosen: the colour and the name of each in every figure.
RULES = {
    "selected": (COLOURS[0], "selected on validation"),
    "best": (COLOURS[1], "best checkpoint"),
}


def new_figure(width: float, height: float) -> Figure:
    """A figure of our own: pyplot and its global state are never touched."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    return Figure(figsize=(width, height), dpi=150, facecolor="white", layout=layout)


def finish(figure: Figure, record: Record, *more: str, part: str = "") -> Figure:
    """Put the title above, and below it what was run, which no figure goes without.

    `part` says under the title which part of it the figure shows, where it is not all.
    """
    scale = record["scale"]
    trial = "" if scale == 1 else f"A trial on {scale:g} of the schedule"
    under = "; ".join(filter(None, (trial, part)))
    under = textwrap.fill(under, int(TITLE_LETTERS_PER_INCH * figure.get_figwidth()))
    title = "\n".join(filter(None, (record["title"], under)))
    figure.suptitle(title, fontsize=12, fontweight="bold", color=INK)
    said = " ".join(filter(None, (what_was_run(record), *more)))
    said = textwrap.fill(said, int(LETTERS_PER_INCH * figure.get_figwidth()))
    figure.supxlabel(said, fontsize=7.5, color=PAPER_GREY)
    return figure


def plain_axes(axes: Any, title: str = "") -> None:
    """No box around, a pale grid behind."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.set_title(title, fontsize=10, loc="left", color=INK)


def error_axes(axes: Any, title: str) -> None:
    """Test error over the sparsity, with a legend of the lines that are there by now."""
    plain_axes(axes, title)
    axes.set_xlabel("sparsity, %", fontsize=9)
    axes.set_ylabel("test error, %", fontsize=9)
    axes.legend(fontsize=8, frameon=False)


def logarithmic_errors(axes: Any) -> None:
    """A logarithmic axis of errors: most claims are about those between one and ten percent.

    To be called when everything is drawn: the labels are those that fit what is there.
    """
    from matplotlib.ticker import MaxNLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    marks: Sequence[float] = FEW_ERRORS if high > WIDE_SPAN * low else MANY_ERRORS
    shown = [value for value in marks if low <= value <= high]
    if len(shown) < FEWEST_LABELS:  # errors of about the same size
        marks = MaxNLocator(LABELS).tick_values(low, high)
        shown = [value for value in marks if low <= value <= high]
    axes.set_yticks(shown, labels=[f"{value:g}%" for value in shown])
    axes.minorticks_off()


def spread(found: Record) -> float:
    """One standard deviation. Of a single seed there is none, and no bar or band is drawn."""
    return math.nan if found["std"] is None else found["std"]


def save_figure(figure: Figure, stem: Path) -> None:
    """Write NAME.svg and NAME.png."""
    for kind in ("svg", "png"):
        save(figure, stem.with_name(f"{stem.name}.{kind}"))
