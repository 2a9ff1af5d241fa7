"""`snip data`: the data sets, and where they are or what to put where."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from snip.cli.options import DataDir, Json
from snip.common.console import say, show_facts
from snip.data import DATASETS
from snip.data.locate import check_named_folder, find, places
from snip.data.spec import Layout, Reader, Spec

DETAILS = "Whatever is not here is fetched by --download of `snip run` where there is a network."
EXAMPLES = ("snip data", "snip data --data-dir ~/datasets", "snip data --json")


def command(*, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and where they are."""
    check_named_folder(data_dir)
    found = {name: where(spec, data_dir) for name, spec in DATASETS.items()}
    if as_json:
        say(json.dumps({name: place and str(place) for name, place in found.items()}, indent=2))
        return
    show_facts({name: place or "not found" for name, place in found.items()})
    missing = [spec for name, spec in DATASETS.items() if found[name] is None]
    if missing:
        say(f"\nSearched: {places(data_dir)}.")
    for spec in missing:
        say(f"\n{spec.name}: {spec.advice}, and name FOLDER by --data-dir or SNIP_DATA.")


def where(spec: Spec, data_dir: Path | None) -> Path | str | None:
    """The folder that `load` would read the set from, without reading it."""
    folders: list[Path] = []

    def noting(layout: Layout) -> Layout:
        def recognize(folder: Path, spec: Spec) -> Reader | None:
            reader = layout.recognize(folder, spec)
            if reader is not None:
                folders.append(folder)
            return reader

        return replace(layout, recognize=recognize)

    if spec.name != "mnist" or data_dir is not None:
        find(replace(spec, layouts=tuple(map(noting, spec.layouts))), data_dir)
    inside = "inside the package" if spec.name == "mnist" else None
    return folders[0] if folders else inside
