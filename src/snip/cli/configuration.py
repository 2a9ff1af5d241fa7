"""From the flags of a command to the configuration of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from snip.cli.flags import RUN_FIELDS, TRAIN_FIELDS
from snip.cli.options import PAPER, SHORT
from snip.common.checks import checked_whole
from snip.common.errors import InputError, nearest
from snip.runs import RunConfig
from snip.selection.granularity import checked_granularity
from snip.training import TrainConfig, epoch_iterations, shortened

TENTH = 10  # the short schedule is this much shorter than the paper's


def run_config(
    flags: Mapping[str, Any], *, schedule: str = PAPER, epochs: int | None = None
) -> RunConfig:
    """The configuration that the flags ask for. A flag that is not given leaves the default.

    `epochs` squeezes the schedule into so many, in place of a number of iterations.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    require_function(given["model"])
    if "lr_drops" in given:
        given["lr_drops"] = parsed_drops(given["lr_drops"])
    if "floor" in given:
        given["floor"] = parsed_floor(given["floor"])
    if "sparsity" not in given:
        given["sparsity"] = _own_sparsity(given.get("granularity", "element"))
    run = {name: value for name, value in given.items() if name in RUN_FIELDS}
    plain = RunConfig(**run)
    changes = {name: value for name, value in given.items() if name in TRAIN_FIELDS}
    train = plain.train or TrainConfig()
    # The flag has a default and is always given: the schedule's own optimiser keeps its own rate,
    # which is not the paper's for a method that prunes a trained network.
    if changes.get("optimizer", train.optimizer) != train.optimizer:
        train = train.with_optimizer(changes["optimizer"])
    if epochs is not None:
        changes["iterations"] = _iterations(epochs, plain.dataset, train, changes)
        schedule = SHORT
    train = scheduled(train, schedule, changes.get("iterations"))
    return RunConfig(**run, train=dataclasses.replace(train, **changes))


def _own_sparsity(name: str) -> float:
    """Return the sparsity that a granularity such as 2:4 fixes; raise for the others."""
    sparsity = checked_granularity(name).sparsity
    if sparsity is None:
        raise InputError(
            "--sparsity is missing: give the fraction of the connections to remove, such as 0.95, "
            "or 0 for the dense network."
        )
    return sparsity


def _iterations(epochs: int, dataset: str, train: TrainConfig, changes: dict[str, Any]) -> int:
    """So many epochs in iterations; the length of one depends on other flags."""
    if "iterations" in changes:
        raise InputError("--epochs and --iterations both say how long to train: give one of them.")
    known = {name: changes[name] for name in ("batch_size", "validation") if name in changes}
    each = epoch_iterations(dataset, dataclasses.replace(train, **known))
    return checked_whole("epochs", epochs, least=1) * each


def require_function(model: str) -> None:
    """Refuse a file without the name of what in it makes the network."""
    if model.endswith(".py"):
        raise InputError(
            f"--model {model} names a file and nothing in it: add the function or class that makes "
            f"the network, such as {'.'.join(Path(model).with_suffix('').parts)}:build."
        )


def scheduled(train: TrainConfig, schedule: str, iterations: int | None) -> TrainConfig:
    """The paper's schedule, or the same squeezed into `iterations`."""
    if schedule not in (PAPER, SHORT):
        raise nearest("schedule", schedule, (PAPER, SHORT))
    if schedule == PAPER:
        return train
    return shortened(train, train.iterations // TENTH if iterations is None else iterations)


def parsed_drops(text: str) -> tuple[int, ...]:
    """Iterations from "1000,2000"; none from "none"."""
    if text.strip().lower() in ("", "none"):
        return ()
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--lr-drops is {text!r}: give whole numbers with commas between, such as 1000,2000, "
            "or none."
        ) from error


def parsed_floor(text: str) -> float | str:
    """A number from "10" or "0.01"; a word such as "auto" is left to the configuration."""
    with suppress(ValueError):
        return float(text)
    return text
