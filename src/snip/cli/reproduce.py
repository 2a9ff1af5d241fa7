"""`snip reproduce`: a table or a figure of the paper, or all of them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snip.cli.options import DataDir, Download, Log, option, switch
from snip.cli.useless import Rule, given_options, refuse_useless
from snip.common.console import remark, say
from snip.common.errors import InputError
from snip.common.files import exists
from snip.common.machine import set_up_torch
from snip.common.text import counted, duration

if TYPE_CHECKING:
    from snip.experiments.sweep.reproduce import Reproduction
    from snip.experiments.sweep.request import Request

DETAILS = (
    "Every run has a folder that its configuration names: one that is there is not run again, and "
    "one that was interrupted goes on. Results are updated as each run finishes: NAME.json, .md "
    "and .csv, and for figures .svg and .png."
)
EXAMPLES = (
    "snip reproduce",
    "snip reproduce table1 --dry-run",
    "snip reproduce table1 --jobs 2 --only snip",
    "snip reproduce fig1 --missing --jobs 2",
    "snip reproduce methods --seeds 1 --scale 0.01",
)
Name = Annotated[
    str | None,
    typer.Argument(help="The experiment; all of them: all.", show_default="list them"),
]
Seeds = Annotated[
    int | None,
    option(help="Runs of each row.", show_default="the experiment's own number", metavar="N"),
]
Jobs = Annotated[int, option(help="Runs at a time, one thread each.", metavar="N")]
On = Annotated[
    str,
    option(
        help="Where runs are done: local, ray (a cluster of this machine alone) or "
        "ray://HOST:PORT, whose machines must see --out.",
        metavar="PLACE",
    ),
]
Scale = Annotated[
    float, option(help="Fraction of the full schedule, such as 0.01 for a trial.", metavar="X")
]
Only = Annotated[
    list[str] | None,
    option(
        help="Only rows with this text in their label, network or method; if repeated, with "
        "any of the texts.",
        show_default="all rows",
        metavar="TEXT",
    ),
]

# States of a command that no option names.
NO_TIME, NO_RUNS, NO_SEEDS = "without --time", "without runs", "without seeds"
RULES = (
    Rule(
        "--time",
        frozenset({"--seeds", "--jobs", "--on", "--only", "--missing", "--dry-run", "--log"}),
        "--time times each network once, here and now, in place of training: omit {options}.",
    ),
    Rule(
        "--dry-run",
        frozenset({"--download", "--log"}),
        "--dry-run says what there is to do with the data that is here: omit {options}.",
    ),
    Rule(NO_TIME, frozenset({"--seconds"}), "{options} is of --time alone: give both or none."),
    Rule(
        NO_RUNS,
        frozenset({"--on", "--only", "--scale", "--log"}),  # --jobs and --out do no harm
        "{name} scores networks and has no runs: omit {options}.",
    ),
    Rule(NO_SEEDS, frozenset({"--seeds"}), "{name} scores one draw of each network: omit --seeds."),
)


def command(
    context: typer.Context,
    name: Name = None,
    *,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    on: On = "local",
    scale: Scale = 1.0,
    only: Only = None,
    time: Annotated[
        bool,
        switch("--time", help="Time the networks in place of training, on a quiet machine."),
    ] = False,
    seconds: Annotated[float, option(help="Of --time, for each network.", metavar="X")] = 4.0,
    log: Log = None,
    missing: Annotated[
        bool,
        switch(
            "--missing",
            help="Only what --results has no result of yet; runs of other experiments count, where "
            "their numbers are all that is needed.",
        ),
    ] = False,
    dry_run: Annotated[bool, switch("--dry-run", help="Say what there is to do.")] = False,
    out: Annotated[Path, option(help="Folder of run folders.", metavar="FOLDER")] = Path("runs"),
    results: Annotated[Path, option(help="Folder of tables and figures.", metavar="FOLDER")] = Path(
        "results"
    ),
    data_dir: DataDir = None,
    download: Download = False,
) -> None:
    """Reproduce a table or a figure of the paper."""
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.experiments import ALL, named_experiments
    from snip.experiments.sweep.request import Request
    from snip.experiments.sweep.work import Place

    given = given_options(context)
    if name is None:
        _list_experiments(given)
        return
    first = named_experiments(name)[0]
    runs = name == ALL or bool(first.rows())
    without_seeds = not runs and first.fewest_seeds is None
    states = {NO_TIME: not time, NO_RUNS: not runs, NO_SEEDS: without_seeds}
    refuse_useless(RULES, given, [state for state in states if states[state]], name=name)
    set_up_torch(threads=1, device="cpu")
    place, texts = Place(out, data_dir, download, tuple(log or ())), tuple(only or ())
    asked = Request(place, results, seeds, jobs, scale, texts, on=on, missing=missing)
    works = _works(name, asked, time=time)
    if dry_run:
        _estimate(works)
    else:
        _reproduce(works, seconds if time else None)


def _list_experiments(given: Collection[str]) -> None:
    """Say which experiments there are, if nothing else was asked."""
    from snip.experiments import EXPERIMENTS

    if given:
        raise InputError(
            "no experiment was named: give one of those that snip reproduce lists, or all."
        )
    width = max(map(len, EXPERIMENTS))
    for one in EXPERIMENTS.values():
        say(f"{one.name:<{width}} {one.title}")


def _estimate(works: Sequence[Reproduction]) -> None:
    """Say what there is to do; runs that several experiments need are done once."""
    from snip.experiments.sweep.estimate import show_estimate

    left: dict[str, float] = {}
    for work in works:
        left |= show_estimate(work)
    if len(works) > 1:
        total = duration(sum(left.values()))
        say(f"\nAll {len(works)} experiments: about {total} of one core, shared runs once.")


def _reproduce(works: Sequence[Reproduction], seconds: float | None) -> None:
    """Run the experiments, or time their networks for so many `seconds` each, and show them."""
    from snip.experiments.records.parts import has_something
    from snip.experiments.records.tables import show_record

    failures: list[str] = []
    shown = False
    for work in works:
        record = work.run() if seconds is None else work.time(seconds)
        failures += work.failures
        if not has_something(record):
            continue
        shown = True
        show_record(work.experiment, record)
        drawn = exists(work.stem.with_name(f"{work.stem.name}.png"))
        remark(f"written: {work.stem}.json, .md, .csv{', .svg, .png' if drawn else ''}")
    if failures:
        missing = f"{counted(len(failures), 'part')} missing, see the warnings above"
        remark(f"\n{missing}:" if shown else "nothing was run, see the warnings above.")
        for sentence in failures if shown else ():
            remark(f"- {sentence}")
        raise typer.Exit(1)


def _works(name: str, asked: Request, *, time: bool) -> list[Reproduction]:
    """The experiments that are asked for, all looked at before the first begins.

    A mistake, or a damaged file, is told at once.
    """
    from snip.experiments import ALL, EXPERIMENTS, named_experiments
    from snip.experiments.sweep.reproduce import Reproduction
    from snip.experiments.sweep.request import matching

    works, found = [], set[str]()
    for experiment in named_experiments(name):
        only = asked.only
        if name == ALL and only:  # each experiment takes what it has rows of
            only = tuple(text for text in only if matching(experiment.rows(), [text]))
            found |= {*only}
            if not only:
                continue
        if name == ALL and time and experiment.time is None:
            continue
        request = replace(asked, only=only)
        if name == ALL and not experiment.rows():  # these options are meant for runs
            request = replace(request, seeds=None, scale=1.0)
        request = replace(request, command=_command(experiment.name, request, time=time))
        works.append(Reproduction(experiment, request, tuple(EXPERIMENTS.values())))
    nowhere = [text for text in asked.only if text not in found]
    if name == ALL and nowhere:
        raise InputError(
            f"--only {', '.join(nowhere)} is in no row of any experiment: give a part of the name "
            "of a network or a method."
        )
    return works


def _command(name: str, asked: Request, *, time: bool) -> str:
    """The command as results quote it: without places of this machine, and how many jobs.

    Nor which rows were chosen: the results have those of all commands so far, and are what the
    command without a choice makes.
    """
    words = ["snip", "reproduce", name]
    words += [] if asked.seeds is None else ["--seeds", str(asked.seeds)]
    words += [] if asked.scale == 1 else ["--scale", str(asked.scale)]
    words += ["--time"] if time else []
    return shlex.join(words)
