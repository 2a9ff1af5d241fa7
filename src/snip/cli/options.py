"""Flags that several commands share and that belong to no configuration."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

PLACE = "Where and how"  # the panel of these flags in a help text
option = partial(typer.Option, rich_help_panel=PLACE)
switch = partial(option, metavar="")

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
