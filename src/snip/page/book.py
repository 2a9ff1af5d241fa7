"""The page about some runs: made once into a file, or again and again while they train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from snip.common import files
from snip.common.console import track
from snip.common.errors import FileError
from snip.common.machine import __version__
from snip.page import comparison
from snip.page.explorer import Explorer, Load, colours
from snip.page.finding import Reader, Run, chosen_folders
from snip.page.render import MARK, live_parts, page
from snip.page.story import CommandOf, headline
from snip.page.telling import Told, all_told


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
        chosen_folders(paths)  # a mistake is told before any work

    def page(self, *, live: bool = False) -> str:
        """The whole page as HTML."""
        told = self._told()
        bar = track(told, description="scoring for the sliders", total=len(told))
        explored = {one.shown.key: self._explorer.of(one.run) for one in bar}
        scored = self._explorer.scored()
        data = {
            "curves": [one.curves for one in told],
            "explored": explored,
            "scored": {e["scored"]: scored[e["scored"]] for e in explored.values() if e["scored"]},
            "colours": colours(),
        }
        return page(_story(told) | {"first": _most_to_see(data)}, data, live=live)

    def live(self) -> str:
        """What may have changed since the page was made, as JSON."""
        told = self._told()
        parts = live_parts(_story(told))
        return json.dumps({"curves": [one.curves for one in told], "parts": parts})

    def problems(self) -> list[str]:
        """What could not be read of the runs; the page says the same."""
        return [problem for run in self._runs() for problem in run.problems]

    def _told(self) -> list[Told]:
        return all_told(self._runs(), self._command_of)

    def _runs(self) -> list[Run]:
        return [self._reader.read(folder) for folder in chosen_folders(self._paths)]


def _story(told: Sequence[Told]) -> dict[str, Any]:
    runs = [one.run for one in told]
    title, lead = headline(runs)
    return {
        "title": title,
        "lead": lead,
        "runs": [one.shown for one in told],
        "compared": comparison.rows(
            {one.shown.key: one.run.result for one in told if one.run.result is not None}
        ),
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


def require_ours(path: Path) -> None:
    """Refuse to write over a file that is not a page of ours."""
    if not files.exists(path):
        return
    with files.reading(path), path.open("rb") as file:
        ours = MARK.encode() in file.read(200)
    if not ours:
        raise FileError(
            f"{path} exists and is no page that snip made: choose another name, or --force."
        )
