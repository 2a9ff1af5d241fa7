"""From runs to what the page's template tells: words and numbers, ready to be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from snip.common.errors import escaped, shortened
from snip.common.figures import percent
from snip.experiments.paper_numbers import paper_number
from snip.masks.html import content as masks_html
from snip.page.comparison import paper_told, pruned_by, shortened_schedule
from snip.page.finding import Run
from snip.reports.html import content as report_html
from snip.runs import RunConfig, seeds_of
from snip.runs.chance import chance_note_on
from snip.runs.folder import FINISHED
from snip.training.display import duration
from snip.training.metrics import selected

LONGEST = 200  # characters of a name: one of a thousand would be all of the page
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


def shown(run: Run, key: str, command_of: CommandOf) -> Shown:
    """A run in the words of the page."""
    config, result = run.config, run.result
    paper = "" if config is None else paper_told(paper_number(config))
    return Shown(
        key=key,
        name=_name(run),
        folder=_short(run.folder.resolve().name),
        state=_state(run),
        finished=result is not None,
        damaged=bool(run.problems),
        progress=_progress(run),
        kept=_kept(run),
        error=_error(run),
        paper=paper,
        took=_took(run),
        before=_before(run),
        steps=_steps(run),
        left=_left(run),
        engine=_engine(run),
        problems=(*run.problems, *_notes(run)),
        layers=_layers(run),
        unpruned="Nothing: this is the dense network."
        if config is not None and not config.sparsity
        else "Not known: there are no masks to read in this run's folder.",
        command="" if config is None else command_of(config, result.threads if result else None),
        facts=_facts(run),
    )


def curves(run: Run, key: str) -> dict[str, Any]:
    """The evaluations of a run for its curves; errors in percent."""
    lines = run.history
    return {
        "key": key,
        "name": _name(run),
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
        models = dict.fromkeys(_short(r.config.model) for r in runs if r.config is not None)
        names = ", ".join(list(models)[:4]) + (" and others" if len(models) > 4 else "")
        return f"{len(runs)} runs", f"{names or 'No run could be read'}: {finished} finished."
    run = runs[0]
    if run.config is None:
        return _name(run), "This run cannot be read."
    if run.result is None:
        return _name(run), f"{_state(run)[0].upper()}{_state(run)[1:]}."
    result = run.result
    paper = paper_told(paper_number(run.config))
    beside = f" The paper reports {paper}." if paper else ""
    pruned = (
        f"{result.kept:,} of {result.total:,} connections were kept before training. "
        if run.config.sparsity
        else "Nothing was pruned. "
    )
    return _name(run), f"{pruned}The test error is {percent(result.test_error)}.{beside}"


def _name(run: Run) -> str:
    config = run.config
    if config is None:
        return _short(run.folder.resolve().name)
    redrawn = ["redraw"] if config.sparsity and config.protocol == "redraw" else []
    length = [f"{config.training.iterations:,} iterations"] if shortened_schedule(config) else []
    parts = [config.model, config.dataset, pruned_by(config), *redrawn, *length]
    parts.append(f"seed {config.seed}")
    return _short(" · ".join(parts))


def _short(text: str) -> str:
    return shortened(escaped(text), LONGEST)


def _iterations(run: Run) -> tuple[int, int]:
    total = run.config.last_training.iterations if run.config else 0
    return (run.history[-1].iteration if run.history else 0), total


def _progress(run: Run) -> float:
    done, total = _iterations(run)
    return 1.0 if run.result is not None else min(done / max(total, 1), 1.0)


def _state(run: Run) -> str:
    if run.result is not None:
        return "finished"
    if run.config is None or run.state == FINISHED:
        return "damaged"
    done, total = _iterations(run)
    return f"{done:,} of {total:,} iterations evaluated" if done else "no evaluation yet"


def _kept(run: Run) -> str:
    if run.result is not None:
        return f"{run.result.kept:,} of {run.result.total:,}"
    return "" if run.masks is None else f"{run.masks.kept:,} of {run.masks.total:,}"


def _error(run: Run) -> str:
    if run.result is not None:
        return percent(run.result.test_error)
    return f"{percent(selected(run.history).test_error)} so far" if run.history else ""


def _took(run: Run) -> str:
    if run.result is not None:
        return duration(run.result.seconds)
    return f"{duration(run.history[-1].seconds)} so far" if run.history else ""


def _before(run: Run) -> str:
    """Of a method that prunes a trained network: the trainings before the last."""
    earlier = [] if run.result is None else list(run.result.cost.values())
    return f"and {duration(sum(c.get('seconds', 0.0) for c in earlier))} before" if earlier else ""


def _steps(run: Run) -> str:
    if run.result is not None:
        return f"{run.result.steps_per_second:,.1f}"
    if not run.history or run.config is None:
        return ""
    return f"{run.history[-1].images_per_second / run.config.training.batch_size:,.1f}"


def _left(run: Run) -> str:
    done, total = _iterations(run)
    if run.result is not None or not done:
        return ""
    return duration(run.history[-1].seconds / done * max(total - done, 0))


def _engine(run: Run) -> str:
    if run.result is not None:
        return run.result.engine_note
    asked = "" if run.config is None else f"{run.config.engine} was asked for"
    return f"{run.engine} ({asked})" if run.engine else asked


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
    return Markup("" if run.masks is None else escaped(masks_html(run.masks), keep="\n"))


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
            "Selected": f"iteration {result.selected_iteration:,} by validation error",
            "Errors": f"{percent(result.test_error)} selected, {percent(result.final_test_error)} "
            f"after the last step, {percent(result.best_test_error)} lowest",
            "Files": "not known" if run.changed is None else str(run.changed),
        }
    return {**facts, "Folder": _short(run.folder.resolve().name)}


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _scaled(value: float | None, what: str) -> float | None:
    return None if value is None else round(100 * value if what == "error" else value, 6)
