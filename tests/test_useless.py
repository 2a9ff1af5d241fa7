"""Options that would change nothing: which were given, and the sentence that refuses them."""

from typing import Annotated

import pytest
import typer

from snip.cli.options import Json
from snip.cli.useless import Rule, given_options, refuse_useless
from snip.common.errors import InputError

RULES = (
    Rule("--time", frozenset({"--a", "--b", "--c"}), "{name} takes time: omit {options}."),
    Rule("dry", frozenset({"--d"}), "{name} is dry: omit {options}."),
)


def test_only_options_count_as_given_and_by_their_own_names() -> None:
    app = typer.Typer()

    @app.command()
    def command(
        word: Annotated[str, typer.Argument()], *, as_json: Json = False, yes: bool = False
    ) -> None: ...

    context = typer.main.get_command(app).make_context("command", ["a", "--json"])
    assert given_options(context) == {"--json"}


@pytest.mark.parametrize(
    ("given", "states", "said"),
    [
        ({"--time", "--b"}, (), "it takes time: omit --b."),
        ({"--time", "--b", "--a"}, (), "it takes time: omit --a and --b."),
        ({"--time", "--c", "--b", "--a"}, (), "it takes time: omit --a, --b and --c."),
        ({"--d", "--a"}, ("dry",), "it is dry: omit --d."),
    ],
)
def test_the_options_that_a_rule_finds_are_named(given, states, said) -> None:
    with pytest.raises(InputError) as caught:
        refuse_useless(RULES, given, states, name="it")
    assert str(caught.value) == said


def test_options_that_change_something_are_taken() -> None:
    refuse_useless(RULES, {"--a", "--d"}, (), name="it")
    refuse_useless(RULES, {"--time"}, ("dry",), name="it")
