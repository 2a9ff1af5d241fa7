"""What an experiment would do and how long it would take, without doing it."""

from __future__ import annotations

from snip.common.console import say, show_table
from snip.common.progress import track
from snip.experiments.reproduce import Reproduction
from snip.training.display import duration


def show_estimate(work: Reproduction) -> float:
    """Print the rows with what is left to do of each. Returns the seconds for all of it."""
    work.look(shown=True)
    tasks = work.tasks()
    for task in track(tasks, description="timing networks", total=len(tasks)):
        work.pace.measure(task.config)
    left = {task.name: work.pace.seconds(task.config) or 0.0 for task in tasks}
    cells = []
    for row in work.chosen:
        asked = len(work.seeds(row))
        seeds = work.seeds(row) if work.has_data(row) else ()
        names = [row.at(seed).folder_name for seed in seeds]
        to_do = [left[name] for name in names if name in left]
        model, steps = row.config.model, row.config.training.iterations
        done = f"{asked - len(to_do)} of {asked}"
        time_left = duration(sum(to_do))
        if not work.has_data(row):
            done, time_left = "no data", "-"
        cells.append((row.label, model, f"{row.config.sparsity:g}", steps, done, time_left))
    say(work.experiment.title)
    if cells:
        show_table(("", "network", "sparsity", "steps", "runs done", "time left"), cells)
    seconds, jobs = sum(left.values()), work.request.jobs
    say(
        f"{len(tasks)} runs to do: about {duration(seconds)} of one core, "
        f"{duration(seconds / jobs)} with --jobs {jobs}, on cores that nobody else uses. First "
        "trainings that rows share are counted once."
    )
    return seconds
