"""Each run told on its own, so that one with values nobody foresaw leaves the others their page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from snip.common.text import unforeseen
from snip.page.finding import Run
from snip.page.names import PART, look, name_of, short
from snip.page.story import CommandOf, Shown, curves, shown
from snip.runs.folder import RESULT
from snip.runs.settings import told_apart

# What is left out of a run that cannot be told whole, and what is then said of it.
PARTS = ("config", "under_way", "result", "history", "masks", "report", "engine", "changed")
LESS = (("result",), f"{RESULT} cannot be shown"), (PARTS, "this run cannot be shown")


@dataclass(frozen=True)
class Told:
    """A run as far as it can be told, in words and in curves."""

    run: Run
    shown: Shown
    curves: dict[str, Any]


def all_told(runs: Sequence[Run], command_of: CommandOf) -> list[Told]:
    """Every run in the words of the page, under names that tell them apart."""
    apart = _apart(runs)
    all_ = [told(run, f"run-{i}", command_of, apart.get(i, "")) for i, run in enumerate(runs)]
    names = Counter(one.shown.name for one in all_)
    return [one if names[one.shown.name] == 1 else _by_folder(one) for one in all_]


def _by_folder(one: Told) -> Told:
    """A run under its folder's name too: a copy of a folder is the same run, and has its name."""
    name = f"{one.shown.name} · {short(one.run.folder.resolve().name, PART)}"
    shown_, curve = replace(one.shown, name=name), one.curves
    label = curve["label"].replace(one.shown.name, name, 1)
    return replace(one, shown=shown_, curves=curve | {"name": name, "label": label})


def _apart(runs: Sequence[Run]) -> dict[int, str]:
    """The settings in which runs of the same look differ, by the place of the run."""
    usable = {}
    for place, run in enumerate(runs):
        with suppress(Exception):  # `told` says of it that it cannot be told
            if run.config is not None and look(run.config):
                usable[place] = run.config
    return dict(zip(usable, told_apart([*usable.values()], look), strict=True))


def told(run: Run, key: str, command_of: CommandOf, differing: str = "") -> Told:
    """A run in the words of the page; what cannot be told is left out, and named as a problem."""
    left = run
    for parts, problem in LESS:
        try:
            return _told(left, key, command_of, differing)
        except Exception as error:  # whatever it is, the other runs are shown
            said = f"{problem}: it holds what nobody foresaw ({unforeseen(error)})."
            left = run.without(*parts, problem=said)
    return _told(left, key, command_of, differing)


def _told(run: Run, key: str, command_of: CommandOf, differing: str) -> Told:
    name = name_of(run, differing)
    return Told(run, shown(run, key, name, command_of), curves(run, key, name))
