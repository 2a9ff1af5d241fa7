"""`snip inspect`: what is in masks, weights, a checkpoint or a run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from snip.cli.findings import Finding, of_folder, of_masks, of_weights
from snip.cli.options import Json, option
from snip.cli.outputs import require_file_name
from snip.cli.reading import read
from snip.common.console import remark, say, show, show_facts, show_table
from snip.common.errors import InputError
from snip.common.places import is_folder
from snip.masks import Masks
from snip.reports.pictures import survivors
from snip.reports.text import percent

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
    found = _find(path, model, dataset)
    if picture is not None:
        _draw(found, picture)
    if as_json:
        say(json.dumps(found.to_dict(), indent=2))
    else:
        _show(found)


def _find(path: Path, model: str | None, dataset: str | None) -> Finding:
    if is_folder(path):
        return of_folder(path, model, dataset)
    content = read(path)
    if isinstance(content, Masks):
        return of_masks(path, content, model, dataset)
    return of_weights(path, content)


def _show(found: Finding) -> None:
    show_facts({"kind": found.kind, "path": found.path, **found.shown})
    if found.report is not None:
        show(found.report)
    elif found.parameters:
        show_table(
            ("parameter", "kept", "total", "density"),
            [(p.name, p.kept, p.total, percent(p.density)) for p in found.parameters],
        )


def _draw(found: Finding, picture: Path) -> None:
    if found.masks is None:
        raise InputError(f"there is nothing to draw: {found.path} has no masks.")
    survivors(found.masks, picture)
    remark(f"picture: {picture}")
