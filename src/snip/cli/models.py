"""`snip models`: the networks."""

from __future__ import annotations

import json

from snip.cli.options import Json
from snip.common.console import say, show_table

DETAILS = "Your own network needs no entry here: give it as package.module:function."
EXAMPLES = ("snip models", "snip models --json")


def command(*, as_json: Json = False) -> None:
    """List the networks that have a name."""
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.models import MODELS

    rows = [
        (spec.name, dataset, total, spec.sparsities.get(dataset, ()))
        for spec in MODELS.values()
        for dataset, total in spec.totals.items()
    ]
    if as_json:
        keys = ("model", "dataset", "total", "paper_sparsities")
        say(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    show_table(
        ("model", "data set", "connections", "sparsity in the paper"),
        [(*row[:3], ", ".join(f"{value:g}" for value in row[3])) for row in rows],
    )
