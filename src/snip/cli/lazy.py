"""A group of commands that imports a command only when it is called or asked for help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from snip.common.console import results


class Entry(NamedTuple):
    """Where a command is, what it does in one line, and its panel in the list of commands."""

    module: str
    summary: str
    panel: str


class Command(TyperCommand):
    """A command whose help says so in a sentence if it cannot be printed."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        with results():
            super().format_help(ctx, formatter)


class LazyGroup(TyperGroup):
    """Lists commands by their summaries, and imports the module of a command only to run it."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in self.entries.items():
            self.add_command(
                TyperCommand(name, help=entry.summary, rich_help_panel=entry.panel), name
            )

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help."""
        with results():
            super().format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the table."""
        return list(self.entries)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The name, the imported command and the arguments that are left for it."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self._loaded(name), rest

    def _loaded(self, name: str) -> Any:
        entry = self.entries[name]
        module = import_module(entry.module)
        single = typer.Typer(
            rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False
        )
        single.command(
            name,
            cls=Command,
            help="\n\n".join([entry.summary, getattr(module, "DETAILS", "")]).strip(),
            epilog=self.shown(module.EXAMPLES),
        )(module.command)
        return typer.main.get_command(single)

    @staticmethod
    def shown(examples: Iterable[str]) -> str:
        """The examples, formatted for the end of a help text."""
        return "\n".join(["[bold]Examples[/bold]", *(f"  {line}" for line in examples)])
