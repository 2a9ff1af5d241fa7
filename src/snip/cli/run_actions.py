"""The work of `snip runs`: list, compare and remove."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from itertools import chain, count, islice, product
from pathlib import Path
from string import ascii_uppercase

from snip.common.console import remark, say, show_table
from snip.common.errors import FileError, InputError, nearest
from snip.common.errors import listed as few
from snip.common.figures import counted, duration, percent
from snip.common.files import read_json, reading
from snip.common.lock import is_held, locked
from snip.methods import METHODS
from snip.models import MODELS
from snip.reports.curves import Curve, draw_curves
from snip.reports.pictures import require_format
from snip.runs.folder import FINISHED
from snip.runs.listing import CLUSTER, STATES, Listed, listed, run_folders
from snip.runs.naming import look
from snip.runs.settings import told_apart
from snip.training.journal import METRICS
from snip.training.metrics import read_metrics

DENSE = "dense"
REMOVED_BY = 8  # characters of a name, as many as the digest at its end has


def show_list(
    out: Path, texts: Sequence[str], *, model: str | None, method: str | None, state: str | None
) -> None:
    """Print a line per run that has all of the texts in its name, and fits what else is wanted."""
    for kind, given, known in (("method", method, (*METHODS, DENSE)), ("state", state, STATES)):
        if given is not None and given not in known:
            raise nearest(kind, given, known)
    if model is not None and ":" not in model and model not in MODELS:
        raise nearest("model", model, MODELS)
    wanted = {"model": model, "method": method, "state": state}
    readable, damaged = _readable(out, texts)
    for text in texts:
        if not any(_has(folder.name, text) for folder in run_folders(out)):
            remark(f"no run has {text!r} in its name.")
    found = [run for run in readable if _fits(run, wanted)]
    if found:
        _show_runs(found)
    counts = {name: sum(run.state == name for run in found) for name in STATES}
    counts |= {"damaged (see above)": damaged} if damaged else {}
    said = ", ".join(f"{n} {name}" for name, n in counts.items())
    say(f"{counted(len(found) + damaged, 'run')}: {said}")
    _say_cluster(out)


def _show_runs(runs: Sequence[Listed]) -> None:
    """A table of runs; settings that names do not show stand beside those that they tell apart."""
    heading = ["run", "state", "progress", "time left", "test error"]
    rows = [list(_cells(run)) for run in runs]
    apart = told_apart([run.config for run in runs], look)
    if any(apart):
        heading.append("differs in")
        rows = [[*row, differing] for row, differing in zip(rows, apart, strict=True)]
    show_table(heading, rows)


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


def chosen(out: Path, names: Sequence[str], *, least: int = 1) -> list[Path]:
    """The folder of each name; a part of at least so many characters is enough if one run has it.

    Of what is to be removed more is asked: "." and an empty variable are parts of names too.
    """
    known = {path.name: path for path in run_folders(out)}
    found = []
    for name in names:
        alike = [known[name]] if name in known else [p for n, p in known.items() if _has(n, name)]
        if name not in known and len(name.strip()) < least:
            raise InputError(
                f"{name!r} is too little of a run's name: give at least {least} characters of it, "
                "such as those that it ends with."
            )
        if not alike:
            raise nearest("run", name, known)
        if len(alike) > 1:
            raise InputError(
                f"{name!r} is a part of {len(alike)} names ({few([p.name for p in alike])}): "
                "give more of it."
            )
        found.append(alike[0])
    return found


def _readable(out: Path, texts: Sequence[str]) -> tuple[list[Listed], int]:
    """The runs with these texts in their names but for damaged ones, which are told and counted."""
    runs, damaged = [], 0
    for folder in run_folders(out):
        if not all(_has(folder.name, text) for text in texts):
            continue
        try:
            runs.append(listed(folder))
        except InputError as error:
            damaged += 1
            remark(f"warning: {error}")
    return runs, damaged


def _has(name: str, text: str) -> bool:
    """Whether a run is meant by a text: a part of its name, in large or small letters."""
    return text.lower() in name.lower()


def _fits(run: Listed, wanted: dict[str, str | None]) -> bool:
    has = {"model": run.config.model, "method": _method(run), "state": run.state}
    return all(value is None or has[name] == value for name, value in wanted.items())


def _method(run: Listed) -> str:
    return run.config.method if run.config.sparsity else DENSE


def _cells(run: Listed) -> tuple[str, ...]:
    progress = f"{run.done / run.steps:.0%}" if run.steps else f"{run.phase}: {run.done:,} steps"
    left = run.seconds_left
    error = "-" if run.result is None else percent(run.result.test_error)
    time = "-" if left is None or run.state == FINISHED else duration(left)
    return run.folder.name, run.state, progress, time, error


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
