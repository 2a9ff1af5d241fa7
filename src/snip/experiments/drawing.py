"""What all figures of the experiments share: paper, colours, and how they are saved."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snip.common.files import write_with
from snip.experiments.kinds import Record
from snip.experiments.tables import what_was_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe-Ito: told apart by all eyes, and in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#222222")
INK, PAPER_GREY = "#222222", "#888888"
MARKERS = "osD^vP*Xph"


def new_figure(width: float, height: float) -> Figure:
    """A figure of our own: pyplot and its global state are never touched."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    return Figure(figsize=(width, height), dpi=150, facecolor="white", layout=layout)


def finish(figure: Figure, record: Record, *more: str) -> Figure:
    """Put the title above, and below it what was run, which no figure goes without."""
    figure.suptitle(record["title"], fontsize=12, fontweight="bold", color=INK)
    said = " ".join([what_was_run(record), *more])
    figure.supxlabel(said, fontsize=7.5, color=PAPER_GREY)
    return figure


def plain_axes(axes: Any, title: str = "") -> None:
    """No box around, a pale grid behind."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.set_title(title, fontsize=10, loc="left", color=INK)


def save_figure(figure: Figure, stem: Path) -> None:
    """Write NAME.svg and NAME.png. The same numbers give the same files."""
    from matplotlib import rc_context

    extra: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}
    with rc_context({"svg.hashsalt": "snip"}):
        for kind, metadata in extra.items():
            save = partial(figure.savefig, format=kind, metadata=metadata)
            write_with(stem.with_name(f"{stem.name}.{kind}"), save)
