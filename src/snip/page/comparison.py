"""Our errors beside the paper's: runs that differ in their seed alone are one row."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from snip.common.figures import percent
from snip.experiments.paper_numbers import paper_number
from snip.methods import training_method
from snip.runs import RunConfig, RunResult
from snip.training import paper_schedule
from snip.training.schedule import first_training


@dataclass(frozen=True)
class Row:
    """One configuration over its seeds, as the page shows it."""

    model: str
    dataset: str
    pruned: str
    seeds: int
    ours: str  # of the models that validation selects
    best: str  # lowest of all evaluations, the authors' rule
    paper: str
    source: str
    difference: str
    notes: tuple[str, ...]


def rows(results: Sequence[RunResult]) -> list[Row]:
    """One row for each configuration of the finished runs."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        alike = {k: v for k, v in result.config.identity().items() if k != "seed"}
        groups.setdefault(json.dumps(alike, sort_keys=True), []).append(result)
    return [_row(group) for group in groups.values()]


def pruned_by(config: RunConfig) -> str:
    """How a run prunes, in a few words."""
    if not config.sparsity:
        return "dense"
    control = "" if config.control == "none" else f", control {config.control}"
    return f"{config.method} {percent(config.sparsity).replace('.00%', '%')}{control}"


def _row(group: Sequence[RunResult]) -> Row:
    config, paper = group[0].config, paper_number(group[0].config)
    ours = [result.test_error for result in group]
    return Row(
        model=config.model,
        dataset=config.dataset,
        pruned=pruned_by(config),
        seeds=len(group),
        ours=_spread(ours),
        best=_spread([result.best_test_error for result in group]),
        paper="" if paper is None else percent(paper.error),
        source="not in the paper" if paper is None else paper.source,
        difference="" if paper is None else _difference(ours, paper.error),
        notes=tuple(_notes(group[0])),
    )


def _spread(errors: Sequence[float]) -> str:
    mean = percent(statistics.mean(errors))
    if len(errors) < 2:
        return mean
    return f"{mean} ± {100 * statistics.stdev(errors):.2f}"


def _difference(errors: Sequence[float], paper: float) -> str:
    """Percentage points above or below the paper, and whether the seeds' spread covers them."""
    apart = statistics.mean(errors) - paper
    shown = f"{100 * apart:+.2f}"
    if len(errors) < 2:
        return f"{shown} points"
    covered = abs(apart) <= 2 * statistics.stdev(errors)
    return f"{shown} points, {'within' if covered else 'beyond'} two standard deviations"


def _notes(result: RunResult) -> list[str]:
    """What makes this another experiment than the paper's."""
    config = result.config
    notes = []
    if shortened_schedule(config):
        usual = paper_schedule(config.dataset).iterations
        notes.append(f"{config.training.iterations:,} iterations, the paper's schedule {usual:,}")
    at_start = training_method(config.method) is None
    if config.sparsity and at_start and config.protocol != "redraw":
        notes.append("trains the scored draw, as the paper's text; its authors' code draws again")
    if result.dataset_note:
        notes.append(f"data: {result.dataset_note}")
    return notes


def shortened_schedule(config: RunConfig) -> bool:
    """Whether a run is shorter or longer than the paper's; methods that train have lengths of
    their own."""
    usual = first_training if config.sparsity and training_method(config.method) else paper_schedule
    return config.training.iterations != usual(config.dataset).iterations
