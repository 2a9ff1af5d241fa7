"""`snip reproduce`: a table or a figure of the paper, or all of them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from snip.cli.options import DataDir, Download, option, switch
from snip.common.console import remark, say
from snip.common.device import set_up_torch
from snip.common.errors import InputError

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
        help="Only rows with this text in their label, network or method; may be repeated.",
        show_default="all rows",
        metavar="TEXT",
    ),
]


def command(
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
    missing: Annotated[
        bool,
        switch("--missing", help="Only what no experiment in --results has a result of yet."),
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
    from snip.experiments import ALL, EXPERIMENTS, named_experiments
    from snip.experiments.estimate import show_estimate
    from snip.experiments.reproduce import Reproduction
    from snip.experiments.request import Request, matching
    from snip.experiments.tables import show_record
    from snip.experiments.work import Place
    from snip.training.display import duration

    if name is None:
        if dry_run or time or missing:
            raise InputError(
                "no experiment was named: give one of those that snip reproduce lists, or all."
            )
        for one in EXPERIMENTS.values():
            say(f"{one.name:<12} {one.title}")
        return
    if time and missing:
        raise InputError("--time times networks whether they were timed or not: omit --missing.")
    set_up_torch(threads=1, device="cpu")
    place, texts = Place(out, data_dir, download), tuple(only or ())
    works = []
    # All are looked at before the first begins: a mistake, or a damaged file, is told at once.
    for experiment in named_experiments(name):
        if name == ALL and texts and not matching(experiment.rows(), texts):
            continue
        if name == ALL and time and experiment.time is None:
            continue
        spoken = _command(experiment.name, seeds, scale, texts, time)
        request = Request(
            place, results, seeds, jobs, scale, texts, command=spoken, on=on, missing=missing
        )
        works.append(Reproduction(experiment, request, tuple(EXPERIMENTS.values())))
    failures: list[str] = []
    if dry_run:
        total = sum(show_estimate(work) for work in works)
        if len(works) > 1:
            say(f"\nAll {len(works)} experiments: about {duration(total)} of one core.")
        return
    for work in works:
        experiment = work.experiment
        show_record(experiment, work.time(seconds) if time else work.run())
        remark(f"written: {work.stem}.json, .md, .csv" + (", .svg, .png" * bool(experiment.draw)))
        failures += work.failures
    if failures:
        remark(f"\n{len(failures)} parts are missing, see the warnings above:")
        for sentence in failures:
            remark(f"- {sentence}")
        raise typer.Exit(1)


def _command(name: str, seeds: int | None, scale: float, only: tuple[str, ...], time: bool) -> str:
    """The command as results quote it: without places of this machine, and how many jobs."""
    words = ["snip", "reproduce", name]
    words += [] if seeds is None else ["--seeds", str(seeds)]
    words += [] if scale == 1 else ["--scale", f"{scale:g}"]
    for text in only:
        words += ["--only", text]
    words += ["--time"] if time else []
    return shlex.join(words)
