"""The work of `snip inspect`: find out what a path holds, and show it."""

from __future__ import annotations

from pathlib import Path

from snip.cli.findings import Finding, of_folder, of_masks, of_weights
from snip.cli.reading import read
from snip.common.console import remark, show, show_facts, show_table
from snip.common.errors import InputError
from snip.common.files import is_folder
from snip.common.text import percent
from snip.masks import Masks
from snip.reports.pictures import survivors


def find(path: Path, model: str | None, dataset: str | None) -> Finding:
    """What is in a file or a run's folder."""
    if is_folder(path):
        return of_folder(path, model, dataset)
    content = read(path)
    if isinstance(content, Masks):
        return of_masks(path, content, model, dataset)
    return of_weights(path, content)


def show_finding(found: Finding) -> None:
    """Print it for people."""
    show_facts({"kind": found.kind, "path": found.path, **found.shown})
    if found.report is not None:
        show(found.report)
    elif found.parameters:
        show_table(
            ("parameter", "kept", "total", "density"),
            [(p.name, p.kept, p.total, percent(p.density)) for p in found.parameters],
        )


def draw(found: Finding, picture: Path) -> None:
    """Draw the masks that were found."""
    if found.masks is None:
        raise InputError(f"there is nothing to draw: {found.path} has no masks.")
    survivors(found.masks, picture)
    remark(f"picture: {picture}")
