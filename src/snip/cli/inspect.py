"""`snip inspect`: what is in masks, weights, a checkpoint or a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from snip.cli.options import Json, option
from snip.cli.outputs import require_file_name
from snip.common.console import say

DETAILS = "The kind of a file is told by its content. Nothing in it is executed."
EXAMPLES = (
    "snip inspect masks.safetensors",
    "snip inspect runs/mine --json",
    "snip inspect model.safetensors --picture survivors.png",
)
PathArgument = Annotated[
    Path, typer.Argument(help="Masks, weights, a checkpoint or a run's folder.", metavar="PATH")
]


def command(
    path: PathArgument,
    *,
    model: Annotated[
        str | None,
        option(
            help="The masks' network, for a full report.",
            show_default="as the masks say; your own network must be named",
            metavar="NAME",
        ),
    ] = None,
    dataset: Annotated[
        str | None,
        option(help="Its data set.", show_default="as the masks say", metavar="NAME"),
    ] = None,
    picture: Annotated[
        Path | None, option(help="Draw what survived into this file.", metavar="FILE")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what is in masks, weights or a run's folder."""
    require_file_name(picture, "--picture")
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.cli.inspection import draw, find, show_finding

    found = find(path, model, dataset)
    if picture is not None:
        draw(found, picture)
    if as_json:
        say(json.dumps(found.to_dict(), indent=2))
    else:
        show_finding(found)
