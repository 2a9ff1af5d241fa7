"""A page that is served while runs go on, and runs that have only begun."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from snip.cli.repeating import command_of
from snip.data import load
from snip.page.book import Book
from snip.page.server import PageServer


@contextmanager
def serving(*paths: Path, score: bool = True) -> Iterator[PageServer]:
    with PageServer(Book(paths, command_of, load, score=score)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def error(line: str) -> str:
    """The test error of a line of metrics.jsonl as the page writes it beside a curve."""
    return f"{100 * json.loads(line)['test_error']:.3g}"


def begun(folder: Path, like: Path, *names: str) -> list[str]:
    """A run of which only these files are there, and the lines that its metrics would have."""
    folder.mkdir()
    for name in ("config.json", *names):
        (folder / name).write_bytes((like / name).read_bytes())
    return (like / "metrics.jsonl").read_text().splitlines(keepends=True)
