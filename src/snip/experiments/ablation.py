"""An ablation: what changes a method's error on a network, one change at a time, from a base."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from snip.common.text import short_percent
from snip.experiments.kinds import OF, Experiment, Record, Row
from snip.experiments.records.comparison import LEAST_SEEDS, paired
from snip.experiments.records.drawing import (
    COLOURS,
    PAPER_GREY,
    RULES,
    finish,
    new_figure,
    plain_axes,
    spread,
)
from snip.experiments.records.tables import OF_ALL
from snip.runs import RunConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE = "base"
LEAST, MOST = 0.8, 2.0  # times the paper's error: how far the figure goes at least
BEYOND = 0.05  # of an error that stretches the figure: how far it goes beyond
SHIFTS = {"selected": -0.15, "best": 0.15}  # of a rule's points in the figure from the middle
MOST_NAMED = 6  # changes that the figure leaves out and names; of more, the count says enough
ON_MACHINES = (
    "A seed has the same draws and batches on every machine, but not the same rounding: where a "
    "base and its change are of different machines, they differ by that as well"
)
MARKS_OF_CHANGES = (
    "Only the base is trained as in the paper: the mark of a change says whether it would bring "
    "our error to the paper's"
)
Change = Callable[[RunConfig], RunConfig]
Bases = Sequence[tuple[RunConfig, str]]  # each with the paper's error in percent


def ablation(
    name: str,
    bases: Bases,
    variants: Mapping[str, Change],
    *,
    base_seeds: int,
    notes: tuple[str, ...],
) -> Experiment:
    """The experiment: rows of the paper, all of one method, and the variants of each."""
    models = dict.fromkeys(base.model for base, _ in bases)
    method = bases[0][0].method.upper()
    return Experiment(
        name,
        f"What changes {method}'s error on {', '.join(models)}, one change at a time",
        partial(_rows, bases, variants, base_seeds),
        seeds=3,
        columns=(
            OF_ALL,
            ("lowest % (selected / best)", _lowest),
            ("against the base, same seeds", _gain),
        ),
        draw=partial(_draw, [BASE, *variants]),
        notes=(*notes, MARKS_OF_CHANGES, ON_MACHINES),
    )


def _rows(bases: Bases, variants: Mapping[str, Change], base_seeds: int) -> list[Row]:
    made = []
    for base, paper in bases:
        of = {OF: f"{base.model}, {short_percent(base.sparsity)}"}
        made.append(Row(BASE, base, paper, seeds=base_seeds, about=of))
        for name, change in variants.items():
            changed = change(base)
            # The paper's error is that of its method: it says nothing of another in its place.
            made.append(Row(name, changed, paper * (changed.method == base.method), about=of))
    return made


def base_of(row: Record, record: Record) -> Record:
    """The base that a row of an ablation changes, or is."""
    return next(
        one for one in record["rows"] if one["label"] == BASE and _changes(one) == _changes(row)
    )


def _changes(row: Record) -> str:
    """Which base a row belongs to; older records had one network, and tell the sparsity alone."""
    return row[OF] if OF in row else short_percent(row["config"]["sparsity"])


def _lowest(row: Record, _record: Record) -> str:
    """The luckiest seed under both rules."""
    lowest = (min(run[name] for run in row["runs"]) for name in ("test_error", "best_test_error"))
    return " / ".join(f"{100 * error:.2f}" for error in lowest)


def _gain(row: Record, record: Record) -> str:
    """The difference to the base over the seeds of both, in points and in its standard errors."""
    base = base_of(row, record)
    found = paired(row, base)
    if row is base or found is None:
        return "-"
    known = found.seeds >= LEAST_SEEDS  # two seeds that happen to agree have a tiny one
    errors = f" ({found.mean / found.error:+.1f} s.e.)" if known else ""
    return f"{found.mean:+.2f}{errors}"


def _base_error(rows: Mapping[str, Record]) -> float | None:
    """The base's error over the seeds that every change was run with; its others may be luckier."""
    changed = [row for name, row in rows.items() if name != BASE and row["runs"]]
    common = set.intersection(*(_seeds(row) for row in changed or [rows[BASE]]))
    errors = [100 * run["test_error"] for run in rows[BASE]["runs"] if run["seed"] in common]
    return statistics.mean(errors) if errors else None


def _seeds(row: Record) -> set[int]:
    return {run["seed"] for run in row["runs"]}


def _draw_point(
    axes: Axes, found: Record, place: float, rule: str, limits: tuple[float, float]
) -> None:
    """A mean with its deviation; one that is off the scale, which would press all others together,
    as its number at the edge."""
    mean, colour, shift, most = found["mean"], RULES[rule][0], SHIFTS[rule], limits[1]
    if mean < most:
        bar = spread(found)
        axes.errorbar(mean, place + shift, xerr=bar, fmt="o", markersize=4, color=colour, capsize=2)
        _mark_cut_ends(axes, (mean - bar, mean + bar), place + shift, colour, limits)
    else:
        # One number stands above the middle of the row and the other hangs below it: however low a
        # row is, the two do not touch.
        side = "bottom" if shift < 0 else "top"
        text = f"{mean:.1f} \u2192"
        axes.text(most, place + shift / 2, text, color=colour, fontsize=7, ha="right", va=side)


def _mark_cut_ends(
    axes: Axes,
    ends: tuple[float, float],
    place: float,
    colour: str,
    limits: tuple[float, float],
) -> None:
    """An arrow where a bar goes on beyond the axis: without its cap, nobody sees that it does."""
    cuts = (ends[0] < limits[0], ends[1] > limits[1])
    for cut, edge, arrow in zip(cuts, limits, "<>", strict=True):
        if cut:
            axes.plot(edge, place, arrow, color=colour, markersize=5, clip_on=False)


def _draw(names: list[str], record: Record) -> Figure:
    """A row of points per variant, a panel per base, lines at the base and at the paper."""
    bases: dict[str, dict[str, Record]] = {}
    for row in record["rows"]:
        bases.setdefault(_changes(row), {})[row["label"]] = row
    tried = {row["label"] for row in record["rows"] if row["runs"] or row.get("failed")} | {BASE}
    shown = [name for name in names if name in tried]
    figure = new_figure(max(9.5, 3.0 * len(bases)), 0.26 * len(shown) + 2.3)
    for axes, (of, rows) in zip(_panels(figure, len(bases)), bases.items(), strict=True):
        _draw_panel(axes, of, shown, rows)
        axes.set_yticks(range(len(shown)), labels=shown, fontsize=8)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.label_outer()
    said = "Dashed: the paper. Line: the base, over those of its seeds that the changes have too."
    bars = "Bars: one standard deviation; arrows: off the axis."
    left_out = [name for name in names if name not in tried]
    return finish(figure, record, _not_run(left_out), said, bars)


def _not_run(names: Sequence[str]) -> str:
    """A sentence on the changes that no panel shows, if there are some, and few."""
    return f"Not run at all yet: {', '.join(names)}." if 0 < len(names) <= MOST_NAMED else ""


def _panels(figure: Figure, count: int) -> list[Axes]:
    """Panels beside each other, with the legend in a strip of its own above all of them.

    The layout makes room for what is in axes. A legend of the figure would lie on the title, and
    one in a panel on its points or lines.
    """
    grid = figure.add_gridspec(2, count, height_ratios=(0.01, 1))
    panels = [figure.add_subplot(grid[1, number]) for number in range(count)]
    strip = figure.add_subplot(grid[0, :])
    strip.set_axis_off()
    for colour, name in RULES.values():
        strip.plot([], [], "o", color=colour, markersize=4, label=name)
    strip.legend(loc="center", ncols=len(RULES), fontsize=8, frameon=False, borderaxespad=0)
    return panels


def _limits(paper: float, rows: Mapping[str, Record]) -> tuple[float, float]:
    """Between which errors a panel is drawn: the base and whatever is lower are always in it."""
    lowest = [row[rule]["mean"] for row in rows.values() for rule in RULES if row[rule] is not None]
    base = rows[BASE]["selected"]
    least = min([LEAST * paper, *((1 - BEYOND) * mean for mean in lowest)])
    return least, max(MOST * paper, 0.0 if base is None else (1 + BEYOND) * base["mean"])


def _draw_panel(axes: Axes, of: str, names: list[str], rows: Mapping[str, Record]) -> None:
    paper = float(rows[BASE]["paper"])
    limits = _limits(paper, rows)
    for place, name in enumerate(names):
        row = rows.get(name, {})
        for rule in RULES:
            if row.get(rule) is not None:
                _draw_point(axes, row[rule], place, rule, limits)
        if not row.get("runs"):
            _say_why_empty(axes, place, "failed" if row.get("failed") else "not run")
    axes.set_xlim(limits)
    axes.axvline(paper, color=PAPER_GREY, linestyle=(0, (4, 2)), linewidth=1)
    if (error := _base_error(rows)) is not None:
        axes.axvline(error, color=COLOURS[0], linewidth=0.6)
    plain_axes(axes, f"{of}: the paper has {rows[BASE]['paper']}%")
    axes.set_xlabel("test error, %", fontsize=9)


def _say_why_empty(axes: Axes, place: float, why: str) -> None:
    """A word in a row without points, which would look like a mistake of the drawing."""
    across = axes.get_yaxis_transform()  # across: fractions of the panel, down: rows
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # a line of the base may be here
    axes.text(
        0.98, place, why, color=PAPER_GREY, fontsize=7, ha="right", va="center",
        transform=across, bbox=behind,
    )  # fmt: skip
