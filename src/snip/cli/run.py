"""`snip run`: prune, train and test one configuration."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snip.cli.options import (
    PAPER,
    PRUNING,
    SHORT,
    TRAINING,
    WHAT,
    DataDir,
    Device,
    Download,
    Log,
    Threads,
    option,
    switch,
    with_flags,
)
from snip.common.machine import set_up_torch

if TYPE_CHECKING:
    from snip.runs import RunConfig

DETAILS = (
    "The folder is named by the configuration, so the same command goes on where it was "
    "interrupted, and shows the result if it is there already."
)
EXAMPLES = (
    "snip run --model lenet-300-100 --sparsity 0.95",
    "snip run --model lenet-5-caffe --sparsity 0.98 --schedule short",
    "snip run --model vgg-d --sparsity 0.95 --protocol redraw --dry-run",
    "snip run --model mynets.small:build --sparsity 0.9 --epochs 5 --optimizer adamw",
)

Schedule = Annotated[
    str | None,
    typer.Option(
        help=f"{PAPER}: the paper's iterations and drops; {SHORT}: the same squeezed into "
        "--iterations (by default a tenth).",
        show_default=f"{PAPER}; of your own network the length is asked for, or 10 epochs",
        metavar="NAME",
        rich_help_panel=TRAINING,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Passes over the training set, in place of --iterations; the drops of the schedule "
        "keep their proportions.",
        metavar="N",
        rich_help_panel=TRAINING,
    ),
]
Out = Annotated[Path, option(help="Folder of run folders.", metavar="FOLDER")]
Folder = Annotated[
    Path | None,
    option(
        help="The run's own folder.",
        show_default="in --out, named by the configuration",
        metavar="FOLDER",
    ),
]


@with_flags(WHAT, PRUNING, TRAINING)
def command(
    *,
    schedule: Schedule = None,
    epochs: Epochs = None,
    out: Out = Path("runs"),
    folder: Folder = None,
    resume: Annotated[bool, switch(help="Go on from the last checkpoint.")] = True,
    log: Log = None,
    dry_run: Annotated[bool, switch("--dry-run", help="Show the configuration only.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "cpu",
    threads: Threads = None,
    **flags: Any,
) -> None:
    """Prune, train and test one configuration."""
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.cli.configuration import run_config
    from snip.cli.length import chosen_length
    from snip.cli.results import remark_on_drops, remark_on_state, show_plan, show_result
    from snip.runs import run

    config = run_config(flags, schedule=schedule or PAPER, epochs=epochs)
    set_up_torch(threads=threads, device=device)

    def place_of(config: RunConfig) -> Path:
        return folder or out / config.folder_name

    said = (schedule, epochs, flags.get("iterations"))
    if config.is_user_model and all(flag is None for flag in said):
        config = chosen_length(
            config,
            lambda epochs: run_config(flags, epochs=epochs),
            place_of,
            device=device,
            may_ask=not dry_run,
        )
    place = place_of(config)
    remark_on_drops(config)
    if dry_run:
        show_plan(config, place)
        return
    result = run(
        config,
        folder=place,
        data_dir=data_dir,
        download=download,
        resume=resume,
        device=device,
        log=log or (),
        on_state=partial(remark_on_state, place) if resume else None,
    )
    show_result(result)
