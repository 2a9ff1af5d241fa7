"""From runs to what the page's template tells: words and numbers, ready to be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from snip.common.text import counted, escaped, percent
from snip.experiments.paper_numbers import paper_number
from snip.masks.masks import as_table as masks_table
from snip.methods import training_method
from snip.page import progress
from snip.page.comparison import paper_told
from snip.page.finding import Run
from snip.page.names import name_of, short
from snip.reports.text import html_content as report_html
from snip.runs import RunConfig, RunResult, seeds_of
from snip.runs.guessing import chance_note_on

CommandOf = Callable[[RunConfig, int | None], str]


@dataclass(frozen=True)
class Shown:
    """One run as the template shows it. What is not known is empty."""

    key: str
    name: str
    folder: str
    state: str
    finished: bool
    damaged: bool
    progress: float  # fraction of the iterations that is evaluated
    kept: str
    error: str
    paper: str
    took: str
    before: str  # time of trainings before the last
    steps: str
    left: str
    engine: str
    problems: tuple[str, ...]
    layers: Markup  # the table of what each layer keeps
    unpruned: str  # what is said in its place
    command: str
    facts: dict[str, str]


def shown(run: Run, key: str, name: str, command_of: CommandOf) -> Shown:
    """A run in the words of the page."""
    config, result = run.config, run.result
    paper = "" if config is None else paper_told(paper_number(config))
    return Shown(
        key=key,
        name=name,
        folder=short(run.folder.resolve().name),
        state=progress.state(run),
        finished=result is not None,
        damaged=bool(run.problems),
        progress=progress.fraction(run),
        kept=_kept(run),
        error=progress.error(run),
        paper=paper,
        took=progress.took(run),
        before=progress.before(run),
        steps=progress.steps(run),
        left=progress.left(run),
        engine=progress.engine(run),
        problems=(*run.problems, *_notes(run)),
        layers=_layers(run),
        unpruned="Nothing: this is the dense network."
        if config is not None and not config.sparsity
        else "Not known: there are no masks to read in this run's folder.",
        command="" if config is None else command_of(config, result.threads if result else None),
        facts=_facts(run),
    )


def curves(run: Run, key: str, name: str) -> dict[str, Any]:
    """The evaluations of a run for its curves; errors in percent."""
    lines, phase = run.history, progress.phase(run)
    return {
        "key": key,
        "name": name,
        "label": f"{name}, {phase}" if phase else name,
        "masks": run.masks is not None,
        # What runs can be put in order by, where it is known.
        "error": progress.known_error(run),
        "kept": progress.known_kept(run)[0],
        "seconds": progress.known_seconds(run),
        "iterations": [line.iteration for line in lines],
        "series": {
            f"{part}_{what}": [_scaled(getattr(line, f"{part}_{what}"), what) for line in lines]
            for what in ("error", "loss")
            for part in ("test", "valid", "train")
        },
    }


def headline(runs: Sequence[Run]) -> tuple[str, str]:
    """The page's title and the sentence below it."""
    if len(runs) != 1:
        finished = sum(run.result is not None for run in runs)
        models = dict.fromkeys(short(r.config.model) for r in runs if r.config is not None)
        names = ", ".join(list(models)[:4]) + (" and others" if len(models) > 4 else "")
        return counted(len(runs), "run"), f"{names or 'No run could be read'}: {finished} finished."
    run = runs[0]
    if run.config is None:
        return name_of(run), "This run cannot be read."
    if run.result is None:
        state = progress.state(run)
        return name_of(run), f"{state[0].upper()}{state[1:]}."
    result = run.result
    paper = paper_told(paper_number(run.config))
    beside = f" The paper reports {paper}." if paper else ""
    trains = training_method(run.config.method) is not None
    when = "after a first training" if trains else "before training"
    pruned = (
        f"{result.kept:,} of {result.total:,} connections were kept {when}. "
        if run.config.sparsity
        else "Nothing was pruned. "
    )
    return name_of(run), f"{pruned}The test error is {percent(result.test_error)}.{beside}"


def _kept(run: Run) -> str:
    kept, total = progress.known_kept(run)
    return "" if kept is None else f"{kept:,} of {total:,}"


def _notes(run: Run) -> list[str]:
    notes = []
    if run.result is not None:
        notes += [run.result.note] if run.result.note else []
        chance = chance_note_on(run.result, run.masks)
        notes += [f"{chance[0].upper()}{chance[1:]}"] if chance else []
    if run.changed is not None and any(run.changed):
        notes.append(f"Files are no longer as the run left them: {run.changed}.")
    return notes


def _layers(run: Run) -> Markup:
    """The table that notebooks show too. It escapes names itself."""
    if run.report is not None:
        return Markup(escaped(report_html(run.report), keep="\n"))
    return Markup("" if run.masks is None else escaped(masks_table(run.masks), keep="\n"))


def _facts(run: Run) -> dict[str, str]:
    if run.config is None:
        return {}
    facts = {"Seeds": _pairs(seeds_of(run.config))}
    if run.result is not None:
        result = run.result
        facts |= {
            "Versions": _pairs(result.versions),
            "Machine": f"{_pairs(result.machine)}; on {result.device}, threads {result.threads}",
            "Date": result.date,
            "Selected": f"iteration {result.selected_iteration:,}, {_selected_by(result)}",
            "Errors": f"{percent(result.test_error)} selected, {percent(result.final_test_error)} "
            f"after the last step, {percent(result.best_test_error)} lowest",
            "Files": "not known" if run.changed is None else str(run.changed),
        }
    return {**facts, "Folder": short(run.folder.resolve().name)}


def _selected_by(result: RunResult) -> str:
    if result.valid_error is None:
        return "the last, because nothing was held out for validation"
    return "by validation error"


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _scaled(value: float | None, what: str) -> float | None:
    return None if value is None else round(100 * value if what == "error" else value, 6)
