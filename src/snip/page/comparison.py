"""Our errors beside the paper's: runs that differ in their seed alone are one row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from snip.common.text import percent
from snip.experiments.paper_numbers import PaperNumber, paper_number
from snip.experiments.records.summary import AGREES, ROUNDED, summary
from snip.page.names import has_other_length, pruned_by
from snip.runs import RunConfig, RunResult
from snip.runs.settings import name_in_words, told_apart, value_in_words

# What the tables of `snip reproduce` mark, in words: both ask `summary`.
IN_WORDS = {
    AGREES: "within two standard deviations",
    ROUNDED: "within two standard deviations and the rounding of the paper's number",
}


@dataclass(frozen=True)
class Compared:
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
    runs: tuple[str, ...]  # the keys of all runs that are of this configuration


def rows(results: Mapping[str, RunResult]) -> list[Compared]:
    """One row for each configuration of the finished runs, which are given by their keys."""
    groups: dict[str, dict[int, RunResult]] = {}
    keys: dict[str, list[str]] = {}
    for key, result in results.items():
        alike = {k: v for k, v in result.config.identity().items() if k != "seed"}
        name = json.dumps(alike, sort_keys=True)
        keys.setdefault(name, []).append(key)
        seeds = groups.setdefault(name, {})
        # A copy of a folder, or the run done again elsewhere, is no other seed.
        seeds.setdefault(result.config.seed, result)
    rows = [list(seeds.values()) for seeds in groups.values()]
    apart = told_apart([row[0].config for row in rows], _look)
    return [
        _compared(row, differing, runs)
        for row, differing, runs in zip(rows, apart, keys.values(), strict=True)
    ]


def _look(config: RunConfig) -> str:
    return f"{config.model} {config.dataset} {pruned_by(config)}"


def paper_told(number: PaperNumber | None) -> str:
    """The paper's error, and whether it is of another experiment; empty if it has none."""
    if number is None:
        return ""
    return f"{_printed(number)}{', other settings' if number.differs else ''}"


def _compared(group: Sequence[RunResult], differing: str, runs: Sequence[str]) -> Compared:
    config, paper = group[0].config, paper_number(group[0].config)
    ours = [result.test_error for result in group]
    return Compared(
        model=config.model,
        dataset=config.dataset,
        pruned=", ".join(filter(None, (pruned_by(config), differing))),
        seeds=len(group),
        ours=_spread(ours),
        best=_spread([result.best_test_error for result in group]),
        paper="" if paper is None else _printed(paper),
        source="the paper has no number for it" if paper is None else paper.source,
        difference="" if paper is None else _difference(ours, paper),
        notes=tuple(_notes(group[0], paper)),
        runs=tuple(runs),
    )


def _printed(paper: PaperNumber) -> str:
    return percent(float(paper.printed) / 100)


def _spread(errors: Sequence[float]) -> str:
    found = summary(errors)
    mean = percent(sum(errors) / len(errors))
    return mean if found["std"] is None else f"{mean} ± {found['std']:.2f}"


def _difference(errors: Sequence[float], paper: PaperNumber) -> str:
    """Percentage points above or below the paper, and whether the seeds' spread covers them.

    Another experiment than the paper's neither agrees with it nor disagrees.
    """
    is_same = paper.marked and not paper.differs
    found = summary(errors, paper.printed if is_same else "", paper.std)
    shown = f"{float(str(found['mean'])) - float(paper.printed):+.2f} points"
    if found["against"] is None:
        return shown
    return f"{shown}, {IN_WORDS.get(str(found['against']), 'beyond two standard deviations')}"


def _notes(result: RunResult, paper: PaperNumber | None) -> list[str]:
    """What makes this another experiment than the paper's."""
    config = result.config
    notes = []
    differs = {} if paper is None else dict(paper.differs)
    if paper is None and has_other_length(config):
        usual = config.usual_training.iterations
        notes.append(f"{config.training.iterations:,} iterations, usual are {usual:,}")
    if "protocol" in differs and config.protocol == "train-scored":
        del differs["protocol"]
        notes.append("trains the scored draw, as the paper's text; its authors' code draws again")
    if differs and paper is not None:
        told = "; ".join(f"{name_in_words(name)} {value_in_words(a)}, there {value_in_words(b)}"
                         for name, (a, b) in differs.items())  # fmt: skip
        notes.append(f"other settings than snip reproduce {paper.experiment}: {told}")
    if paper is not None and not paper.marked:
        notes.append(f"snip reproduce {paper.experiment} trains it in another way than the paper")
    if result.dataset_note:
        notes.append(f"data: {result.dataset_note}")
    return notes
