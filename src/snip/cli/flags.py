"""Flags of a configuration, made from the fields of RunConfig and TrainConfig: this table adds
help, and what else cannot be read there. A new field is a flag by itself."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from snip.algorithm import BUDGETS
from snip.anatomy.undisturbed import BATCH_NORM_MODES
from snip.common.checks import checked_whole
from snip.common.errors import InputError, nearest
from snip.engine.choice import ENGINES
from snip.methods.controls import CONTROLS, NONE
from snip.models import IMAGES, MODELS
from snip.models.initializers import INITIALIZERS
from snip.runs import METHODS, PROTOCOLS, RunConfig
from snip.scoring.settings import REDUCTIONS
from snip.selection.budgets import SCOPES
from snip.training import OPTIMIZERS, SCHEDULES, TrainConfig, epoch_iterations, shortened

WHAT, PRUNING, TRAINING = "What", "Pruning", "Training"
PAPER, SHORT = "paper", "short"
TENTH = 10  # the short schedule is this much shorter than the paper's
METAVARS: dict[type, str] = {str: "NAME", int: "N", float: "X", bool: ""}
F = TypeVar("F", bound=Callable[..., Any])


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


RUN_FLAGS: dict[str, Flag] = {
    "model": Flag(
        "A network of `snip models`, or your own as package.module:function.",
        suggested=tuple(MODELS),
    ),
    "sparsity": Flag("Fraction of the connections removed, such as 0.95; 0 is the dense network."),
    "dataset": Flag("A data set of `snip data`.", open="the network's first", choices=(*IMAGES,)),
    "seed": Flag("Of the weights, the scoring batch and the order of the data."),
    "method": Flag("How connections are chosen.", choices=(*METHODS,)),
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
    "engine": Flag("What the training computes with.", choices=ENGINES),
}
TRAIN_FLAGS: dict[str, Flag] = {
    "optimizer": Flag("The rule of a step.", choices=(*OPTIMIZERS,)),
    "lr": Flag("Learning rate at the start.", open=_by_optimizer("lr")),
    "momentum": Flag("Of SGD."),
    "weight_decay": Flag("L2 penalty; AdamW's decay.", open=_by_optimizer("weight_decay")),
    "batch_size": Flag("Images per step."),
    "iterations": Flag("Steps of training."),
    "lr_drops": Flag("Iterations at which the learning rate drops, such as 1000,2000; or none."),
    "lr_factor": Flag("What a drop multiplies the learning rate by; the authors' code has 0.2."),
    "validation": Flag("Fraction of the training set held out to select the model."),
    "eval_every": Flag("Iterations between two evaluations.", open="once per epoch"),
    "augment": Flag("Flip and shift the images, where the data set does so in the paper."),
}
# The training uses the run's seed and has no flag for its own.
RUN_FIELDS = tuple(f.name for f in dataclasses.fields(RunConfig) if f.name != "train")
TRAIN_FIELDS = tuple(f.name for f in dataclasses.fields(TrainConfig) if f.name != "seed")
# Of the run's fields, those that have nothing to do with pruning.
TRAINING_FIELDS = ("engine",)
WHAT_FIELDS = ("model", "sparsity", "dataset", "seed")


def with_flags(fields: Iterable[str]) -> Callable[[F], F]:
    """Give a command the flags of these fields, in place of its `**flags`."""
    parameters = [_parameter(name) for name in fields]

    def decorate(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*parameters, *own]
        )
        return function

    return decorate


def run_config(
    flags: Mapping[str, Any], *, schedule: str = PAPER, epochs: int | None = None
) -> RunConfig:
    """The configuration that the flags ask for. A flag that is not given leaves the default.

    `epochs` squeezes the schedule into so many, in place of a number of iterations.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if "lr_drops" in given:
        given["lr_drops"] = parsed_drops(given["lr_drops"])
    if "floor" in given:
        given["floor"] = parsed_floor(given["floor"])
    run = {name: value for name, value in given.items() if name in RUN_FIELDS}
    plain = RunConfig(**run)
    changes = {name: value for name, value in given.items() if name in TRAIN_FIELDS}
    train = plain.train or TrainConfig()
    if "optimizer" in changes:
        train = train.with_optimizer(changes["optimizer"])
    if epochs is not None:
        changes["iterations"] = _iterations(epochs, plain.dataset, train, changes)
        schedule = SHORT
    train = scheduled(train, schedule, changes.get("iterations"))
    return RunConfig(**run, train=dataclasses.replace(train, **changes))


def _iterations(epochs: int, dataset: str, train: TrainConfig, changes: dict[str, Any]) -> int:
    """So many epochs in iterations; the length of one depends on other flags."""
    if "iterations" in changes:
        raise InputError("--epochs and --iterations both say how long to train: give one of them.")
    known = {name: changes[name] for name in ("batch_size", "validation") if name in changes}
    each = epoch_iterations(dataset, dataclasses.replace(train, **known))
    return checked_whole("epochs", epochs, least=1) * each


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


def _parameter(field: str) -> inspect.Parameter:
    """A keyword of the command for a field of either class."""
    of_run = field in RUN_FIELDS
    owner, table = (RunConfig, RUN_FLAGS) if of_run else (TrainConfig, TRAIN_FLAGS)
    flag = table.get(field, Flag(""))
    default, shown = _default(field, flag, of_run=of_run)
    kind = get_type_hints(owner)[field]
    kind = kind if kind in METAVARS else str
    option = typer.Option(
        *_names(field, flag, default),
        help=_help(flag),
        rich_help_panel=_panel(field),
        show_default=shown or default is not None,
        metavar=METAVARS[kind],
        autocompletion=_completion(flag.choices or flag.suggested),
    )
    required = default is inspect.Parameter.empty
    return inspect.Parameter(
        field,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind if required else kind | None, option],
    )


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
        return (inspect.Parameter.empty, "") if default is dataclasses.MISSING else (default, "")
    values = {name: getattr(train, field) for name, train in SCHEDULES.items()}
    if len(set(values.values())) == 1:
        return next(iter(values.values())), ""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        groups.setdefault(text, []).append(name)
    return None, "; ".join(f"{text} for {', '.join(names)}" for text, names in groups.items())


def _completion(values: tuple[str, ...]) -> Callable[[str], list[str]] | None:
    if not values:
        return None

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete
