"""Options that would change nothing beside others are refused, by rules that a command gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import typer

from snip.common.errors import InputError


class Rule(NamedTuple):
    """Options that would change nothing beside another one, or in a state, and what is said."""

    beside: str  # an option, or a word of the command's own for a state that no option names
    useless: frozenset[str]
    sentence: str  # with {options} for those that were given


def given_options(context: typer.Context) -> set[str]:
    """The options that the user has given, whatever their values; arguments are not among them."""
    options = [p for p in context.command.params if p.param_type_name == "option"]
    sources = [(p, context.get_parameter_source(p.name or "")) for p in options]
    return {p.opts[0] for p, source in sources if source and source.name != "DEFAULT"}


def refuse_useless(
    rules: Iterable[Rule], given: Collection[str], states: Collection[str], **words: str
) -> None:
    """Refuse options that would change nothing beside the others, or in one of the states.

    `words` are what the sentences name beside the options.
    """
    holding = {*given, *states}
    for beside, useless, sentence in rules:
        found = sorted(useless.intersection(given))
        if found and beside in holding:
            raise InputError(sentence.format(options=_joined(found), **words))


def _joined(names: list[str]) -> str:
    """Names as in a sentence: a, b and c."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if names[1:] else names[0]
