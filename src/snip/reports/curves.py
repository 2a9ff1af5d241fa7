"""A picture of how trainings went: loss and error over the steps, a colour per run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from snip.common.errors import InputError
from snip.common.files import PathLike
from snip.reports.pictures import INK, as_written, require_format, save

# Okabe-Ito: told apart by all eyes, and in print.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "#222222")


class Point(Protocol):
    """What is drawn of one evaluation."""

    @property
    def iteration(self) -> int: ...
    @property
    def train_loss(self) -> float: ...
    @property
    def test_error(self) -> float: ...


class Curve(NamedTuple):
    """The evaluations of one run, and its name."""

    label: str
    points: Sequence[Point]


def draw_curves(curves: Sequence[Curve], path: PathLike) -> None:
    """Draw training loss and test error to a PNG (or SVG, PDF)."""
    from matplotlib.figure import Figure

    require_format(Path(path))
    drawn = [curve for curve in curves if curve.points]
    if not drawn:
        raise InputError("none of these runs has come to an evaluation: there is nothing to draw.")
    height = 4.2 + 0.22 * len(drawn)
    figure = Figure(figsize=(10.0, height), dpi=150, facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, curve in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        steps = [point.iteration for point in curve.points]
        losses = [point.train_loss for point in curve.points]
        errors = [100 * point.test_error for point in curve.points]
        label = as_written(curve.label)
        left.plot(steps, losses, color=colour, linewidth=1.2, marker=".", label=label)
        right.plot(steps, errors, color=colour, linewidth=1.2, marker=".")
    _label(left, "training loss")
    _label(right, "test error, %")
    figure.legend(loc="outside lower left", fontsize=8, frameon=False)
    save(figure, path)


def _label(axes: Any, title: str) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel("training steps", fontsize=9)
    axes.set_yscale("log")
    for which in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        which(FuncFormatter(lambda value, _: f"{value:g}"))  # 20, not 2 x 10 to the 1
    axes.tick_params(axis="y", which="minor", labelsize=6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.tick_params(labelsize=8)
