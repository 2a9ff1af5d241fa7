"""Flags of a configuration, made from the fields of RunConfig and TrainConfig: this table adds
help, and what else cannot be read there. A new field is a flag by itself.

The fields, and the names that can be chosen, stand in modules that import torch, which takes
seconds. The commands therefore read the flags from a file, which this writes:

    python -m snip.cli.flags
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, get_type_hints

from snip.cli.options import FLAGS, PRUNING, TRAINING, WHAT
from snip.common.files import write_json
from snip.engine.choice import ENGINES
from snip.methods.controls import CONTROLS, NONE
from snip.models import IMAGES, MODELS
from snip.models.initializers import INITIALIZERS
from snip.network.network import BIASES
from snip.network.untouched import BATCH_NORM_MODES
from snip.runs import METHODS, PROTOCOLS, RunConfig
from snip.runs.config import LABELS
from snip.scoring.settings import REDUCTIONS
from snip.selection.budgets import SCOPES
from snip.selection.granularity import GRANULARITIES
from snip.selection.request import BUDGETS
from snip.training import OPTIMIZERS, SCHEDULES, TrainConfig
from snip.training.schedule import first_training

METAVARS: dict[type, str] = {str: "NAME", int: "N", float: "X", bool: ""}


class Flag(NamedTuple):
    """How a field appears on the command line."""

    help: str
    name: str = ""  # by default the field's name with dashes
    open: str = ""  # what help says about a default that is filled in later
    choices: tuple[str, ...] = ()
    suggested: tuple[str, ...] = ()  # for the shell's completion; other values are welcome


def _by_optimizer(field: str) -> str:
    """What help says about a default that depends on the optimiser."""
    return "; ".join(f"{given[field]:g} for {name}" for name, given in OPTIMIZERS.items())


def _of_first_trainings() -> str:
    """What help says of the rate of methods that prune a trained network, where it is another."""
    rates = {name: first_training(name).lr for name in SCHEDULES}
    other = {name: rate for name, rate in rates.items() if rate != SCHEDULES[name].lr}
    names = {rate: ", ".join(n for n in other if other[n] == rate) for rate in other.values()}
    return "; ".join(
        f"{rate:g} for methods that prune a trained network, on {known}"
        for rate, known in names.items()
    )


RUN_FLAGS: dict[str, Flag] = {
    "model": Flag(
        "A network of `snip models`, or your own as package.module:function.",
        suggested=tuple(MODELS),
    ),
    "sparsity": Flag(
        "Fraction of the connections removed, such as 0.95; 0 is the dense network.",
        open="none; of a granularity such as 2:4 its own",
    ),
    "dataset": Flag("A data set of `snip data`.", open="the network's first", choices=(*IMAGES,)),
    "seed": Flag("Of the weights, the scoring batch and the order of the data."),
    "method": Flag("How connections are chosen.", choices=(*METHODS,)),
    "granularity": Flag(
        "What is kept or removed whole: single connections (element), units (channel), n of m "
        "inputs (2:4), blocks of a weight (4x4).",
        suggested=GRANULARITIES,
    ),
    "protocol": Flag(
        "Train the weights that were scored (the paper's text), or draw again under the same "
        "masks (the authors' code).",
        choices=PROTOCOLS,
    ),
    "initializer": Flag(
        "Draws the weights that are scored.",
        name="--init",
        open="vs; your own network's own",
        choices=(*INITIALIZERS,),
    ),
    "train_initializer": Flag(
        "Draws the weights that are trained, with --protocol redraw.",
        name="--init-train",
        open="as --init",
        choices=(*INITIALIZERS,),
    ),
    "score_batch_size": Flag("Images per scoring batch.", open="as --batch-size"),
    "score_batches": Flag("Batches to score on."),
    "reduction": Flag("How the scores of several batches become one.", choices=REDUCTIONS),
    "decay": Flag("Weight of the past in --reduction ema."),
    "scope": Flag("Who competes with whom for the places.", choices=SCOPES),
    "floor": Flag(
        "What every layer keeps at least: a fraction below 1, a count from 1 on, or auto.",
        open="0, as the authors' code; auto for your own network",
    ),
    "budget": Flag(
        "What is limited: the count of connections, or their FLOPs; --sparsity is its fraction.",
        choices=BUDGETS,
    ),
    "biases": Flag(
        "Whether biases compete with the weights, or all stay and do not count.", choices=BIASES
    ),
    "batch_norm": Flag(
        "Mode of batch norm while scoring.",
        open="eval, as the authors' code; train for your own network",
        choices=BATCH_NORM_MODES,
    ),
    "control": Flag(
        "A sanity control in place of the method's masks: shuffled in each parameter, random at "
        "the same densities, around re-drawn weights, of inverted scores.",
        choices=(NONE, *CONTROLS),
    ),
    "labels": Flag(
        "Labels of the training images: their own, or dealt out at random. Scores come from the "
        "true ones.",
        choices=LABELS,
    ),
    "engine": Flag("What the training computes with.", choices=ENGINES),
}
TRAIN_FLAGS: dict[str, Flag] = {
    "optimizer": Flag("The rule of a step.", choices=(*OPTIMIZERS,)),
    "lr": Flag(
        "Learning rate at the start.", open=f"{_by_optimizer('lr')}; {_of_first_trainings()}"
    ),
    "momentum": Flag("Of SGD."),
    "weight_decay": Flag("L2 penalty; AdamW's decay.", open=_by_optimizer("weight_decay")),
    "batch_size": Flag("Images per step."),
    "iterations": Flag("Steps of training."),
    "lr_drops": Flag("Iterations at which the learning rate drops, such as 1000,2000; or none."),
    "lr_factor": Flag("What a drop multiplies the learning rate by; the authors' code has 0.2."),
    "weight_decay_factor": Flag("What a drop multiplies --weight-decay by."),
    "validation": Flag("Fraction of the training set held out to select the model."),
    "eval_every": Flag("Iterations between two evaluations.", open="once per epoch"),
    "augment": Flag("Flip and shift the images, where the data set does so in the paper."),
}
# The training uses the run's seed and has no flag for its own.
RUN_FIELDS = tuple(f.name for f in dataclasses.fields(RunConfig) if f.name != "train")
TRAIN_FIELDS = tuple(f.name for f in dataclasses.fields(TrainConfig) if f.name != "seed")
# Of the run's fields, those that have nothing to do with pruning.
TRAINING_FIELDS = ("engine", "labels")
WHAT_FIELDS = ("model", "sparsity", "dataset", "seed")
REQUIRED = object()  # in place of a default


def rows() -> dict[str, dict[str, Any]]:
    """The flag of each field as the file holds it: what `typer.Option` is to be told."""
    return {field: _row(field) for field in (*RUN_FIELDS, *TRAIN_FIELDS)}


def _row(field: str) -> dict[str, Any]:
    of_run = field in RUN_FIELDS
    owner, table = (RunConfig, RUN_FLAGS) if of_run else (TrainConfig, TRAIN_FLAGS)
    flag = table.get(field, Flag(""))
    default, shown = _default(field, flag, of_run=of_run)
    kind = get_type_hints(owner)[field]
    kind = kind if kind in METAVARS else str
    return {
        "names": _names(field, flag, default),
        "help": _help(flag),
        "panel": _panel(field),
        "kind": kind.__name__,
        "metavar": METAVARS[kind],
        "required": default is REQUIRED,
        "default": None if default is REQUIRED else default,
        "shown": shown or default is not None,
        "suggested": [*(flag.choices or flag.suggested)],
    }


def _panel(field: str) -> str:
    if field in WHAT_FIELDS:
        return WHAT
    return TRAINING if field in (*TRAIN_FIELDS, *TRAINING_FIELDS) else PRUNING


def _help(flag: Flag) -> str:
    return f"{flag.help} One of {', '.join(flag.choices)}." if flag.choices else flag.help


def _names(field: str, flag: Flag, default: object) -> list[str]:
    name = flag.name or "--" + field.replace("_", "-")
    return [f"{name}/--no-{name[2:]}" if isinstance(default, bool) else name]


def _default(field: str, flag: Flag, *, of_run: bool) -> tuple[Any, str]:
    """(the flag's default, what help says about it). None leaves the value to the configuration."""
    if flag.open:
        return None, flag.open
    if of_run:
        default = next(f.default for f in dataclasses.fields(RunConfig) if f.name == field)
        return (REQUIRED, "") if default is dataclasses.MISSING else (default, "")
    values = {name: getattr(train, field) for name, train in SCHEDULES.items()}
    if len(set(values.values())) == 1:
        return next(iter(values.values())), ""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        groups.setdefault(text, []).append(name)
    return None, "; ".join(f"{text} for {', '.join(names)}" for text, names in groups.items())


if __name__ == "__main__":
    write_json(FLAGS, rows())
