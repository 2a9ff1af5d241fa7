"""What an experiment would do and how long it would take, without doing it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from snip.common.console import say, show_table, track
from snip.common.text import counted, duration
from snip.experiments.kinds import Row
from snip.experiments.records.parts import MADE, MEASURED
from snip.experiments.sweep.order import together
from snip.experiments.sweep.ray_workers import is_ray
from snip.experiments.sweep.reproduce import Reproduction


def show_estimate(work: Reproduction) -> dict[str, float]:
    """Print the rows with what is left to do of each. Returns the seconds of all that is.

    They are by the names of runs, of which other experiments may need the same.
    """
    say(work.experiment.title)
    if not work.rows:
        return _show_measures(work)
    work.read_runs(shown=True)
    tasks = work.tasks()
    for task in track(tasks, description="timing networks", total=len(tasks)):
        work.pace.measure(task.config)
    left = {task.name: work.pace.seconds(task.config) or 0.0 for task in tasks}
    cells = [_cells(work, row, left) for row in work.chosen]
    if cells:
        heading = ("", "network", "sparsity %", "steps", "runs done", "time left")
        show_table(heading, cells, keys=3)
    seconds = sum(left.values())
    todo = f"{counted(len(tasks), 'run')} to do"
    say(f"{todo}: about {duration(seconds)} of one core{_together(work, left)}.")
    if any(task.first is not None for task in tasks):
        say("First trainings that rows share are counted once; steps are of the first training.")
    return left


def _cells(work: Reproduction, row: Row, left: Mapping[str, float]) -> tuple[object, ...]:
    asked = len(work.seeds(row))
    model, steps = row.config.model, row.config.training.iterations
    about = row.label, model, f"{100 * row.config.sparsity:g}", steps
    if not work.has_data(row):
        return *about, "no data", "-"
    names = [row.at(seed).folder_name for seed in work.seeds(row)]
    to_do = [left[name] for name in names if name in left]
    return *about, f"{asked - len(to_do)} of {asked}", duration(sum(to_do))


def _together(work: Reproduction, left: Mapping[str, float]) -> str:
    """What several jobs make of it: no more than cores and runs, no less than one run."""
    jobs, cores = work.request.jobs, os.cpu_count() or 1
    here = not is_ray(work.request.on)
    used = min(jobs, max(1, len(left)), cores if here else jobs)
    if used == 1:
        return ", if nobody else uses it"
    seconds = together(list(left.values()), used)
    few = f", as this machine has {cores} cores," if here and jobs > cores else ""
    return f", {duration(seconds)} with --jobs {jobs}{few} if nobody else uses the cores"


def _show_measures(work: Reproduction) -> dict[str, float]:
    """Of an experiment that trains nothing: how long its measures took before, if that is known."""
    seconds = work.parts.held.get(MADE, {}).get(MEASURED, {}).get("seconds", 0.0)
    took = f" It took {duration(seconds)} before." if seconds else " It takes some minutes."
    done = "is not missing" if work.request.missing else "is done by this code"
    state = done if work.has_measures() else "is to be done"
    say(f"It scores networks and trains nothing: no runs. This {state}.{took}")
    return {} if work.has_measures() else {work.experiment.name: seconds}
