"""Flags of the commands. Nothing here may import torch: a help text, a completion and a mistake in
a flag's name are answered at once."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

WHAT, PRUNING, TRAINING = "What", "Pruning", "Training"  # panels of a configuration's flags
PLACE = "Where and how"  # the panel of flags that belong to no configuration
PAPER, SHORT = "paper", "short"  # schedules
FLAGS = Path(__file__).with_name("flags.json")  # written by `python -m snip.cli.flags`
KINDS: dict[str, type] = {kind.__name__: kind for kind in (str, int, float, bool)}
F = TypeVar("F", bound=Callable[..., Any])

option = partial(typer.Option, rich_help_panel=PLACE)
switch = partial(option, metavar="")

Log = Annotated[
    list[str] | None,
    option(
        help="Log the evaluations as well, into the run's folder: tensorboard, wandb or mlflow.",
        metavar="NAME",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    option(
        help="The only folder searched for the data.",
        show_default="$SNIP_DATA and the usual places",
        metavar="FOLDER",
    ),
]
Download = Annotated[bool, switch("--download", help="Fetch the data if it is not here.")]
Device = Annotated[str, option(help="Such as cpu or cuda.", metavar="NAME")]
Threads = Annotated[
    int | None, option(help="Threads of torch; its own choice if not given.", metavar="N")
]
Json = Annotated[bool, switch("--json", help="Print JSON.")]


def with_flags(*panels: str) -> Callable[[F], F]:
    """Give a command the configuration's flags of these panels, in place of its `**flags`."""
    found = {field: row for field, row in flag_rows().items() if row["panel"] in panels}
    parameters = [_parameter(field, row) for field, row in found.items()]

    def decorate(function: F) -> F:
        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*parameters, *own]
        )
        return function

    return decorate


def flag_rows() -> dict[str, dict[str, Any]]:
    """The configuration's flags by field."""
    return json.loads(FLAGS.read_text(encoding="utf-8"))


def _parameter(field: str, row: dict[str, Any]) -> inspect.Parameter:
    """A keyword of the command for a flag."""
    flag = typer.Option(
        *row["names"],
        help=row["help"],
        rich_help_panel=row["panel"],
        show_default=row["shown"],
        metavar=row["metavar"],
        autocompletion=_completion(row["suggested"]),
    )
    kind, required = KINDS[row["kind"]], row["required"]
    return inspect.Parameter(
        field,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else row["default"],
        annotation=Annotated[kind if required else kind | None, flag],
    )


def _completion(values: list[str]) -> Callable[[str], list[str]] | None:
    if not values:
        return None

    def complete(incomplete: str) -> list[str]:
        return [value for value in values if value.startswith(incomplete)]

    return complete
