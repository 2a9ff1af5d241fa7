"""An ablation: what changes a method's error on a network, one change at a time, from a base."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from snip.experiments.drawing import (
    COLOURS,
    PAPER_GREY,
    RULES,
    finish,
    new_figure,
    plain_axes,
    spread,
)
from snip.experiments.judging import paired
from snip.experiments.kinds import Experiment, Record, Row
from snip.runs import RunConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASE = "base"
MOST = 2.0  # times the paper's error: how far the figure goes
SHIFTS = {"selected": -0.15, "best": 0.15}  # of a rule's points in the figure from the middle
Change = Callable[[RunConfig], RunConfig]
Papers = Mapping[float, str]  # the paper's error in percent at each sparsity


def ablation(
    name: str,
    base: RunConfig,
    papers: Papers,
    variants: Mapping[str, Change],
    *,
    base_seeds: int,
    notes: tuple[str, ...],
) -> Experiment:
    """The experiment: the base and its variants, each at all sparsities that the paper has."""
    return Experiment(
        name,
        f"What changes {base.method.upper()}'s error on {base.model}, one change at a time",
        partial(_rows, base, papers, variants, base_seeds),
        seeds=3,
        columns=(("lowest % (selected / best)", _lowest), ("against the base, same seeds", _gain)),
        draw=partial(_draw, papers, [BASE, *variants]),
        notes=notes,
    )


def _rows(
    base: RunConfig, papers: Papers, variants: Mapping[str, Change], base_seeds: int
) -> list[Row]:
    made = []
    for sparsity, paper in papers.items():
        here = replace(base, sparsity=sparsity)
        made.append(Row(BASE, here, paper, seeds=base_seeds))
        made += [Row(name, change(here), paper) for name, change in variants.items()]
    return made


def _lowest(row: Record, _record: Record) -> str:
    """The luckiest seed under both rules."""
    lowest = (min(run[name] for run in row["runs"]) for name in ("test_error", "best_test_error"))
    return " / ".join(f"{100 * error:.2f}" for error in lowest)


def _gain(row: Record, record: Record) -> str:
    """The difference to the base over the seeds of both, in points and in its standard errors."""
    (base,) = (one for one in record["rows"] if one["label"] == BASE and _same(one, row))
    found = paired(row, base)
    if row is base or found is None:
        return "-"
    errors = f" ({found.mean / found.error:+.1f} s.e.)" if found.error else ""
    return f"{found.mean:+.2f}{errors}"


def _same(one: Record, other: Record) -> bool:
    return bool(one["config"]["sparsity"] == other["config"]["sparsity"])


def _base_error(rows: Mapping[str, Record]) -> float | None:
    """The base's error over the seeds that every change was run with; its others may be luckier."""
    changed = [row for name, row in rows.items() if name != BASE and row["runs"]]
    common = set.intersection(*(_seeds(row) for row in changed or [rows[BASE]]))
    errors = [100 * run["test_error"] for run in rows[BASE]["runs"] if run["seed"] in common]
    return statistics.mean(errors) if errors else None


def _seeds(row: Record) -> set[int]:
    return {run["seed"] for run in row["runs"]}


def _draw_point(axes: Axes, found: Record, place: float, colour: str, most: float) -> None:
    """A mean with its deviation; one that is off the scale, which would press all others together,
    as its number at the edge."""
    if found["mean"] < most:
        axes.errorbar(
            found["mean"], place, xerr=spread(found), fmt="o", markersize=4, color=colour, capsize=2
        )
    else:
        text = f"{found['mean']:.1f} \u2192"
        axes.text(most, place, text, color=colour, fontsize=7, ha="right", va="center")


def _draw(papers: Papers, names: list[str], record: Record) -> Figure:
    """A row of points per variant, a panel per sparsity, lines at the base and at the paper."""
    figure = new_figure(9.5, 0.26 * len(names) + 1.8)
    panels = figure.subplots(1, len(papers), sharey=True, squeeze=False)[0]
    for axes, (sparsity, paper) in zip(panels, papers.items(), strict=True):
        _draw_panel(axes, record, names, sparsity, paper)
    panels[0].set_yticks(range(len(names)), labels=names, fontsize=8)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    for colour, name in RULES.values():
        panels[-1].plot([], [], "o", color=colour, label=name)
    panels[-1].legend(fontsize=8, frameon=False)
    said = "Dashed: the paper. Line: the base over the seeds of the changes alone."
    return finish(figure, record, said, "Bars: one standard deviation.")


def _draw_panel(axes: Axes, record: Record, names: list[str], sparsity: float, paper: str) -> None:
    rows = {r["label"]: r for r in record["rows"] if r["config"]["sparsity"] == sparsity}
    most = MOST * float(paper)
    for place, name in enumerate(names):
        for rule, (colour, _) in RULES.items():
            if rows[name][rule] is not None:
                _draw_point(axes, rows[name][rule], place + SHIFTS[rule], colour, most)
    axes.set_xlim(0.8 * float(paper), most)
    axes.axvline(float(paper), color=PAPER_GREY, linestyle=(0, (4, 2)), linewidth=1)
    if (error := _base_error(rows)) is not None:
        axes.axvline(error, color=COLOURS[0], linewidth=0.6)
    plain_axes(axes, f"{100 * sparsity:g}%: the paper has {paper}%")
    axes.set_xlabel("test error, %", fontsize=9)
