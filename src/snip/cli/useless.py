"""Options of `snip reproduce` that would change nothing beside others are refused."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import typer

from snip.common.errors import InputError

# States of a command that no option names.
NO_TIME, NO_RUNS, NO_SEEDS = "without --time", "without runs", "without seeds"


class Rule(NamedTuple):
    """Options that would change nothing beside another one, or in a state, and what is said."""

    beside: str
    useless: frozenset[str]
    sentence: str


RULES = (
    Rule(
        "--time",
        frozenset({"--seeds", "--jobs", "--on", "--only", "--missing", "--dry-run", "--log"}),
        "--time times each network once, here and now, in place of training: omit {options}.",
    ),
    Rule(
        "--dry-run",
        frozenset({"--download", "--log"}),
        "--dry-run says what there is to do with the data that is here: omit {options}.",
    ),
    Rule(NO_TIME, frozenset({"--seconds"}), "{options} is of --time alone: give both or none."),
    Rule(
        NO_RUNS,
        frozenset({"--on", "--only", "--scale", "--log"}),  # --jobs and --out do no harm
        "{name} scores networks and has no runs: omit {options}.",
    ),
    Rule(NO_SEEDS, frozenset({"--seeds"}), "{name} scores one draw of each network: omit --seeds."),
)


def given_options(context: typer.Context) -> set[str]:
    """The options that the user has given, whatever their values."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    named = (name for name, source in sources.items() if source and source.name != "DEFAULT")
    return {f"--{name.replace('_', '-')}" for name in named if name != "name"}


def refuse_useless(name: str, given: Collection[str], states: dict[str, bool]) -> None:
    """Refuse options that would change nothing beside the others."""
    holding = {*given, *(state for state, holds in states.items() if holds)}
    for beside, useless, sentence in RULES:
        found = sorted(useless.intersection(given))
        if found and beside in holding:
            raise InputError(sentence.format(name=name, options=" and ".join(found)))
