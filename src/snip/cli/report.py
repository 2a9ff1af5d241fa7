"""`snip report`: one page about runs, as a file or served live."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snip.cli.options import DataDir, Threads, option, switch
from snip.cli.outputs import require_file_name
from snip.common.console import remark, say
from snip.common.errors import InputError
from snip.common.machine import set_up_torch

DETAILS = (
    "The page needs no network and no other file. Its pictures are computed when it is made: the "
    "run's network is drawn and scored again, and nothing is trained."
)
EXAMPLES = (
    "snip report runs/mine",
    "snip report runs -o all.html",
    "snip report --watch runs",
)
DEFAULT = Path("report.html")
Runs = Annotated[
    list[Path], typer.Argument(help="Run folders, or folders of them.", metavar="RUNS...")
]


def command(
    runs: Runs,
    *,
    out: Annotated[
        Path | None,
        option("--out", "-o", help="The page.", show_default=str(DEFAULT), metavar="FILE"),
    ] = None,
    force: Annotated[bool, switch("--force", help="Write over a file that is no page.")] = False,
    watch: Annotated[
        bool, switch("--watch", help="Serve the page to this machine, live, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None, option(help="Of --watch.", show_default="a free one", metavar="N")
    ] = None,
    score: Annotated[bool, switch(help="Score again for the sliders.")] = True,
    own_networks: Annotated[
        bool,
        switch("--own-networks", help="Import networks of your own that the runs name."),
    ] = False,
    data_dir: DataDir = None,
    threads: Threads = None,
) -> None:
    """Make one page about runs."""
    if watch and (out is not None or force):
        raise InputError("--watch serves the page and writes none: leave out -o and --force.")
    if port is not None and not watch:
        raise InputError(f"--port {port} is for --watch, which serves the page: add it.")
    path = out or DEFAULT
    require_file_name(path, "-o")
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.cli.repeating import command_of
    from snip.common.files import write_text
    from snip.data import load
    from snip.page.book import Book, require_ours
    from snip.page.server import serve

    set_up_torch(threads=threads, device="cpu")
    if not watch and not force:
        require_ours(path)
    book = Book(
        runs,
        command_of,
        lambda name: load(name, data_dir=data_dir),
        own_networks=own_networks,
        score=score,
    )
    if watch:
        serve(book, port or 0)
        return
    write_text(path, book.page())
    for problem in book.problems():
        remark(f"warning: {problem}")
    say(str(path))
