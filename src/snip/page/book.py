"""The page about some runs: made once into a file, or again and again while they train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from snip.common import files, places
from snip.common.errors import FileError
from snip.common.version import __version__
from snip.page import comparison
from snip.page.explorer import Explorer, Load, colours
from snip.page.finding import Reader, Run, run_folders
from snip.page.render import MARK, live_parts, page
from snip.page.story import CommandOf, curves, headline, shown


class Book:
    """The runs of a page, read anew each time it is made."""

    def __init__(
        self,
        paths: Sequence[Path],
        command_of: CommandOf,
        load: Load,
        *,
        own_networks: bool = False,
        score: bool = True,
    ) -> None:
        """`command_of(config, threads)` is the command that repeats a run; `load` finds data."""
        self._paths, self._command_of = paths, command_of
        self._reader = Reader()
        self._explorer = Explorer(load, own_networks=own_networks, score=score)
        run_folders(paths)  # a mistake is told before any work

    def page(self, *, live: bool = False) -> str:
        """The whole page as HTML."""
        runs = self._runs()
        keyed = dict(zip(_keys(runs), runs, strict=True))
        explored = {key: self._explorer.of(run) for key, run in keyed.items()}
        scored = self._explorer.scored()
        data = {
            "curves": [curves(run, key) for key, run in keyed.items()],
            "explored": explored,
            "scored": {e["scored"]: scored[e["scored"]] for e in explored.values() if e["scored"]},
            "colours": colours(),
        }
        return page(self._story(runs) | {"first": _most_to_see(data)}, data, live=live)

    def live(self) -> str:
        """What may have changed since the page was made, as JSON."""
        runs = self._runs()
        found = [curves(run, key) for key, run in zip(_keys(runs), runs, strict=True)]
        return json.dumps({"curves": found, "parts": live_parts(self._story(runs))})

    def _runs(self) -> list[Run]:
        return [self._reader.read(folder) for folder in run_folders(self._paths)]

    def _story(self, runs: Sequence[Run]) -> dict[str, Any]:
        title, lead = headline(runs)
        keys = _keys(runs)
        return {
            "title": title,
            "lead": lead,
            "runs": [shown(r, key, self._command_of) for key, r in zip(keys, runs, strict=True)],
            "compared": comparison.rows([run.result for run in runs if run.result is not None]),
            "version": __version__,
            "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        }


def _most_to_see(data: dict[str, Any]) -> str:
    """The run that is looked at first: one with a picture and sliders, if there is one."""

    def seen(key: str) -> int:
        explored = data["explored"][key]
        scored = data["scored"].get(explored["scored"]) or {}
        return 2 * bool(explored["picture"]) + bool(scored.get("layers"))

    return max(data["explored"], key=seen)


def _keys(runs: Sequence[Run]) -> list[str]:
    return [f"run-{index}" for index, _ in enumerate(runs)]


def require_ours(path: Path) -> None:
    """Refuse to write over a file that is not a page of ours."""
    if not places.exists(path):
        return
    with files.reading(path), path.open("rb") as file:
        ours = MARK.encode() in file.read(200)
    if not ours:
        raise FileError(
            f"{path} exists and is no page that snip made: choose another name, or --force."
        )
