"""What `snip run` says: its plan, what its folder holds already, and the result."""

from __future__ import annotations

from pathlib import Path

from snip.cli.options import SHORT
from snip.common.console import remark, show_facts
from snip.common.text import percent
from snip.runs import RunConfig, RunResult, chance_note, resolve_model
from snip.runs.folder import BEGUN, FINISHED, STOPPED, require_own, state_of


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


def show_plan(config: RunConfig, place: Path) -> None:
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


def remark_on_state(place: Path, state: str) -> None:
    """Say what the folder holds already."""
    if state == FINISHED:
        remark(f"{place} is finished already: this is its result. --no-resume runs it again.")
    elif state == STOPPED:
        remark(f"{place} was begun before: it goes on from its last checkpoint.")
    elif state == BEGUN:
        remark(f"{place} was begun before: it had come to no checkpoint.")


def remark_on_drops(config: RunConfig) -> None:
    """Say so if the training ends before its learning rate has dropped."""
    train = config.training
    missed = [f"{drop:,}" for drop in train.lr_drops if drop >= train.iterations]
    if missed:
        remark(
            f"note: {train.iterations:,} iterations end before the learning rate drops at "
            f"{' and '.join(missed)}; --schedule {SHORT} moves the drops inside."
        )
