"""Each run told on its own, so that one with values nobody foresaw leaves the others their page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from snip.common.errors import unforeseen
from snip.page.finding import Run
from snip.page.story import CommandOf, Shown, curves, shown
from snip.runs.folder import RESULT

# What is left out of a run that cannot be told whole, and what is then said of it.
PARTS = ("config", "under_way", "result", "history", "masks", "report", "engine", "changed")
LESS = (("result",), f"{RESULT} cannot be shown"), (PARTS, "this run cannot be shown")


@dataclass(frozen=True)
class Told:
    """A run as far as it can be told, in words and in curves."""

    run: Run
    shown: Shown
    curves: dict[str, Any]


def told(run: Run, key: str, command_of: CommandOf) -> Told:
    """A run in the words of the page; what cannot be told is left out, and named as a problem."""
    left = run
    for parts, problem in LESS:
        try:
            return _told(left, key, command_of)
        except Exception as error:  # whatever it is, the other runs are shown
            said = f"{problem}: it holds what nobody foresaw ({unforeseen(error)})."
            left = run.without(*parts, problem=said)
    return _told(left, key, command_of)


def _told(run: Run, key: str, command_of: CommandOf) -> Told:
    return Told(run, shown(run, key, command_of), curves(run, key))
