"""`snip run`: prune, train and test one configuration."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from snip.cli.flags import (
    PAPER,
    RUN_FIELDS,
    SHORT,
    TRAIN_FIELDS,
    TRAINING,
    run_config,
    with_flags,
)
from snip.cli.length import chosen_length
from snip.cli.options import DataDir, Device, Download, Threads, option, switch
from snip.common.console import remark, show_facts
from snip.common.device import set_up_torch
from snip.common.figures import percent
from snip.runs import RunConfig, RunResult, chance_note, resolve_model, run
from snip.runs.folder import BEGUN, FINISHED, STOPPED, require_own, state_of

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


@with_flags([*RUN_FIELDS, *TRAIN_FIELDS])
def command(
    *,
    schedule: Schedule = None,
    epochs: Epochs = None,
    out: Out = Path("runs"),
    folder: Folder = None,
    resume: Annotated[bool, switch(help="Go on from the last checkpoint.")] = True,
    dry_run: Annotated[bool, switch("--dry-run", help="Show the configuration only.")] = False,
    data_dir: DataDir = None,
    download: Download = False,
    device: Device = "cpu",
    threads: Threads = None,
    **flags: Any,
) -> None:
    """Prune, train and test one configuration."""
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
    _remark_on_drops(config)
    if dry_run:
        _show_plan(config, place)
        return
    result = run(
        config,
        folder=place,
        data_dir=data_dir,
        download=download,
        resume=resume,
        device=device,
        on_state=partial(_remark_on_state, place) if resume else None,
    )
    show_result(result)


def show_result(result: RunResult) -> None:
    """Print the result of a run, one fact per line."""
    config = result.config
    selection = f"iteration {result.selected_iteration:,} of {config.last_training.iterations:,}"
    if result.valid_error is not None:
        selection += f", where the validation error is {percent(result.valid_error)}"
    show_facts(
        {
            "model": config.model,
            "data set": ", ".join(filter(None, (config.dataset, result.dataset_note))),
            "test error": f"{percent(result.test_error)} ({selection})",
            "sparsity": percent(result.sparsity),
            "kept": f"{result.kept:,} of {result.total:,}",
            "engine": result.engine_note,
            "seconds": f"{result.seconds:.1f}",
            "folder": result.folder,
        }
    )
    if result.note is not None:
        remark(f"note: {result.note}.")
    note = chance_note(result)
    if note is not None:
        remark(f"warning: {note}")


def _show_plan(config: RunConfig, place: Path) -> None:
    """Print the configuration and its folder, after all checks that need no data."""
    require_own(place, config)
    resolve_model(config.model, config.dataset)
    fields = config.to_dict()
    train = fields.pop("train")
    state = state_of(place)
    state = "begun, to be resumed" if state in (BEGUN, STOPPED) else state
    show_facts(
        {
            **fields,
            **{f"train.{name}": value for name, value in train.items()},
            "folder": f"{place} ({state})",
        }
    )


def _remark_on_state(place: Path, state: str) -> None:
    """Say what the folder holds already."""
    if state == FINISHED:
        remark(f"{place} is finished already: this is its result. --no-resume runs it again.")
    elif state == STOPPED:
        remark(f"{place} was begun before: it goes on from its last checkpoint.")
    elif state == BEGUN:
        remark(f"{place} was begun before: it had come to no checkpoint.")


def _remark_on_drops(config: RunConfig) -> None:
    train = config.training
    missed = [f"{drop:,}" for drop in train.lr_drops if drop >= train.iterations]
    if missed:
        remark(
            f"note: {train.iterations:,} iterations end before the learning rate drops at "
            f"{' and '.join(missed)}; --schedule {SHORT} moves the drops inside."
        )
