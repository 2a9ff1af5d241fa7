"""`snip data`: the data sets, and where they are or what to put where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from snip.cli.options import DataDir, Json
from snip.common.console import say, show_facts

if TYPE_CHECKING:
    from snip.data.spec import Spec

DETAILS = (
    "Sets whose public address is known are fetched by --download of `snip run`, where there is a "
    "network."
)
EXAMPLES = ("snip data", "snip data --data-dir ~/datasets", "snip data --json")


def command(*, data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and where they are."""
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.data import DATASETS
    from snip.data.locate import check_named_folder, places

    check_named_folder(data_dir)
    found = {name: _where(spec, data_dir) for name, spec in DATASETS.items()}
    if as_json:
        say(json.dumps({name: place and str(place) for name, place in found.items()}, indent=2))
        return
    show_facts({name: place or "not found" for name, place in found.items()})
    missing = [spec for name, spec in DATASETS.items() if found[name] is None]
    if missing:
        say(f"\nSearched: {places(data_dir)}.")
    for spec in missing:
        say(f"\n{spec.name}: {spec.advice}, and name FOLDER by --data-dir or SNIP_DATA.")


def _where(spec: Spec, data_dir: Path | None) -> Path | str | None:
    """The folder that `load` would read the set from, without reading it."""
    from snip.data.locate import find

    found = find(spec, data_dir)
    if found is None:
        return None
    return "inside the package" if found.folder == spec.packaged else found.folder
