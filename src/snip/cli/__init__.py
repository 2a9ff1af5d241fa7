"""The command `snip`. A command is a module here with `command` and `EXAMPLES`, and a row below."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from snip.cli.lazy import Entry, LazyGroup
from snip.common.console import complain, finish, remark, say
from snip.common.errors import InputError

# Nothing here may import torch: `snip --help` answers at once, a command loads what it needs.
WORK, LOOK = "Work", "Look"
COMMANDS = {
    "run": Entry("snip.cli.run", "Prune, train and test one configuration in a folder.", WORK),
    "prune": Entry("snip.cli.prune", "Prune a network and save the masks, without training.", WORK),
    "demo": Entry("snip.cli.demo", "Prune LeNet-300-100 and train it beside the dense one.", WORK),
    "reproduce": Entry("snip.cli.reproduce", "Reproduce a table or a figure of the paper.", WORK),
    "report": Entry("snip.cli.report", "Make one page about runs, or serve it live.", LOOK),
    "runs": Entry("snip.cli.runs", "List the runs in a folder, compare or remove some.", LOOK),
    "inspect": Entry("snip.cli.inspect", "Say what is in masks, weights or a run's folder.", LOOK),
    "models": Entry("snip.cli.models", "List the networks that have a name.", LOOK),
    "data": Entry("snip.cli.data", "List the data sets and where they are.", LOOK),
}
EXAMPLES = (
    "snip demo",
    "snip run --model lenet-300-100 --sparsity 0.95",
    "snip prune --model vgg-d --sparsity 0.95 --out masks.safetensors",
)
# typer includes click since version 0.25 and depends on it before; this works with both.
UsageError: Any = typer.BadParameter.__base__
# 128 + the signal, as shells have it: Ctrl-C, a closed terminal, a scheduler's order to end.
BY_CTRL_C = 130
BY_SIGNAL = (BY_CTRL_C, 129, 143)


class SnipGroup(LazyGroup):
    """The commands of the table."""

    entries = COMMANDS


app = typer.Typer(
    cls=SnipGroup,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=LazyGroup.shown(EXAMPLES),
)


def _version(wanted: bool) -> None:
    if wanted:
        from snip.common.machine import __version__

        say(f"snip {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version.", callback=_version, is_eager=True, metavar=""
        ),
    ] = False,
) -> None:
    """Prune a network once, before training: single-shot pruning by connection sensitivity."""
    if context.invoked_subcommand is None:
        say(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 after a user's mistake, told in a sentence."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = app(args=arguments, prog_name="snip", standalone_mode=False)
            finish()
    except UsageError as error:
        complain(_usage(error))
        return 2
    except InputError as error:
        complain(str(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        code = BY_CTRL_C  # newer versions of typer return it, older ones abort
    except SystemExit as ended:  # a training raises it after a signal, when its work is saved
        if ended.code not in BY_SIGNAL:
            raise
        code = ended.code
    if code in BY_SIGNAL:
        remark("\ninterrupted. The same command goes on from the last checkpoint, if there is one.")
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> str:
    """typer's message about a wrong flag, and the help to read."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "snip"
    message = error.format_message() + _given(error.__cause__)
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See: {path} --help"


def _given(cause: Any) -> str:
    """The value that was refused, which typer leaves out since it checks values by pydantic."""
    found = cause.errors() if hasattr(cause, "errors") else []
    return f", but it is {found[0].get('input')!r:.60}" if found else ""


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    remark(f"warning: {message}")
