"""The work of `snip runs`: list, compare and remove."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain, count, islice, product
from pathlib import Path
from string import ascii_uppercase

from snip.cli.run_choice import Filters, chosen, differing, has, read_all, searched
from snip.common.console import remark, say, show_table
from snip.common.errors import FileError, InputError
from snip.common.files import read_json, reading
from snip.common.lock import is_held, locked
from snip.common.text import counted, duration, percent
from snip.reports.pictures import Curve, draw_curves, require_format
from snip.runs.folder import FINISHED
from snip.runs.listing import CLUSTER, DAMAGED, STATES, Listed, listed, run_folders
from snip.training.journal import METRICS
from snip.training.metrics import read_metrics

REMOVED_BY = 8  # characters of a name, as many as the digest at its end has


def show_list(
    out: Path, texts: Sequence[str], *, model: str | None, method: str | None, state: str | None
) -> None:
    """Print a line per run that all texts are found in, and that fits what else is wanted."""
    filters = Filters(model, method, state)
    runs, damaged = read_all(run_folders(out))
    apart = differing(runs)
    words = {run.folder: searched(run, one) for run, one in zip(runs, apart, strict=True)}
    words |= {folder: folder.name for folder in damaged}
    meant = _with_texts(words, texts)
    found = [
        (run, settings)
        for run, settings in zip(runs, apart, strict=True)
        if run.folder in meant and filters.take(run)
    ]
    told = [error for folder, error in damaged.items() if folder in meant and filters.take_damaged]
    for error in told:
        remark(f"warning: {error}")
    _show_runs(found)
    _say_counts([run.state for run, _ in found], len(told))
    _say_cluster(out)


def _with_texts(words: Mapping[Path, str], texts: Sequence[str]) -> set[Path]:
    """The folders in whose words all texts are; a text that no folder has is told."""
    for text in texts:
        if not any(has(one, text) for one in words.values()):
            remark(f"no run has {text!r} in its name or its settings.")
    return {folder for folder, one in words.items() if all(has(one, text) for text in texts)}


def _show_runs(runs: Sequence[tuple[Listed, str]]) -> None:
    """A table of runs; settings that names do not show stand beside those that they tell apart."""
    if not runs:
        return
    heading = ["run", "state", "progress", "time left", "test error"]
    rows = [list(_cells(run)) for run, _ in runs]
    if any(settings for _, settings in runs):
        heading.append("differs in")
        rows = [[*row, settings] for row, (_, settings) in zip(rows, runs, strict=True)]
    show_table(heading, rows)


def _say_counts(states: Sequence[str], damaged: int) -> None:
    counts = {name: states.count(name) for name in STATES}
    counts |= {f"{DAMAGED} (see above)": damaged} if damaged else {}
    said = ", ".join(f"{number} {name}" for name, number in counts.items())
    say(f"{counted(len(states) + damaged, 'run')}: {said}")


def _say_cluster(out: Path) -> None:
    """Print what the command that uses a cluster last noted of it."""
    path = out / CLUSTER
    if not path.is_file():
        return
    fix = "delete it, the command that uses the cluster writes it anew"
    with reading(path, fix=fix):
        state = read_json(path, fix=fix)
        ago = duration(max(0.0, time.time() - state["time"]))
        nodes, cpus, busy, rest = (int(state[k]) for k in ("nodes", "cpus", "at_work", "waiting"))
    about = f"{counted(nodes, 'node')} with {counted(cpus, 'CPU')}"
    say(f"Ray, {ago} ago: {about}, {counted(busy, 'run')} at work, {rest} wait")


def compare(out: Path, names: Sequence[str], picture: Path | None) -> None:
    """Print the settings in which runs differ, and what they came to."""
    if len(names) < 2:
        raise InputError(f"compare was given {counted(len(names), 'run')}: give two or more.")
    if picture is not None:
        require_format(picture)
    folders = chosen(out, names)
    twice = [folder.name for folder in folders if folders.count(folder) > 1]
    if twice:
        raise InputError(f"{twice[0]} was named twice: compare it with another run.")
    runs = [listed(folder) for folder in folders]
    settings = [_settings(run) for run in runs]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    rows = [[key, *(str(one.get(key, "-")) for one in settings)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    rows += [[name, *(_outcome(run).get(name, "-") for run in runs)] for name in OUTCOMES]
    letters = _letters(len(runs))
    show_table(("", *letters), rows)
    labels = [f"{letter}: {run.folder.name}" for letter, run in zip(letters, runs, strict=True)]
    for label in labels:
        say(label)
    if picture is not None:
        curves = [
            Curve(label, read_metrics(run.folder / METRICS))
            for label, run in zip(labels, runs, strict=True)
            if (run.folder / METRICS).is_file()
        ]
        draw_curves(curves, picture)
        say(f"Curves: {picture}")


def _letters(number: int) -> list[str]:
    """A to Z, then AA, AB and so on, as the columns of a spreadsheet."""
    by_length = (product(ascii_uppercase, repeat=length) for length in count(1))
    return ["".join(word) for word in islice(chain.from_iterable(by_length), number)]


def remove(out: Path, names: Sequence[str], *, asked: bool) -> None:
    """Delete the folders of runs, unless a process is at work in one."""
    if not names:
        raise InputError("remove was given no run: give the names of folders, see `snip runs`.")
    folders = list(dict.fromkeys(chosen(out, names, least=REMOVED_BY)))
    for folder in folders:
        if is_held(folder):
            raise FileError(f"{folder} is at work: end its process first. Nothing was removed.")
    for folder in folders:
        if asked and not _agreed(folder):
            remark(f"{folder} stays.")
            continue
        with locked(folder):  # nobody may begin to work in it now
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise FileError(f"cannot remove {folder}: {error}. Delete it by hand.") from error
        say(f"removed {folder}")


def _cells(run: Listed) -> tuple[str, ...]:
    progress = f"{run.done / run.steps:.0%}" if run.steps else f"{run.phase}: {run.done:,} steps"
    left = run.seconds_left
    error = "-" if run.result is None else percent(run.result.test_error)
    still = "-" if left is None or run.state == FINISHED else duration(left)
    return run.folder.name, run.state, progress, still, error


OUTCOMES = (
    "state", "test error", "best of all checkpoints", "kept", "seconds", "steps per second",
)  # fmt: skip


def _outcome(run: Listed) -> dict[str, str]:
    result = run.result
    if result is None:
        return {"state": run.state}
    return {
        "state": run.state,
        "test error": percent(result.test_error),
        "best of all checkpoints": percent(result.best_test_error),
        "kept": f"{result.kept:,} of {result.total:,}",
        "seconds": f"{result.seconds:.1f}",
        "steps per second": f"{result.steps_per_second:.0f}",
    }


def _settings(run: Listed) -> dict[str, object]:
    fields = run.config.to_dict()
    train = fields.pop("train")
    return {**fields, **{f"train.{name}": value for name, value in train.items()}}


def _agreed(folder: Path) -> bool:
    """Ask on a terminal; without one there is nobody to say yes."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise InputError(f"remove asks first, and there is no terminal: add --yes for {folder}.")
    sys.stderr.write(f"Remove {folder} and all that is in it? [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
