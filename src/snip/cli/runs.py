"""`snip runs`: the runs in a folder; compare some, or remove one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snip.cli.options import option, switch
from snip.cli.outputs import require_file_name
from snip.cli.useless import Rule, given_options, refuse_useless
from snip.common.errors import nearest

DETAILS = (
    "Without an action, all runs are listed. `list TEXT ...` lists those that have all of the "
    "texts in their names or in their settings. `compare A B ...` shows where settings and results "
    "differ, and --picture draws the curves. `remove A ...` deletes folders, after a question. A "
    "run is named by its folder, or by a part of the name that no other has; large and small "
    "letters are alike."
)
EXAMPLES = (
    "snip runs",
    "snip runs --model lenet-300-100 --state running",
    "snip runs list snip-0.95 seed0",
    "snip runs compare snip-0.95 snip-0.98 --picture curves.png",
    "snip runs remove lenet-300-100_mnist_dense_5000it_seed0_895c7197",
)
LIST, COMPARE, REMOVE = "list", "compare", "remove"
FILTERS = frozenset({"--model", "--method", "--state"})
RULES = (
    Rule(
        LIST,
        frozenset({"--picture", "--yes"}),
        "list only shows which runs there are: omit {options} (--picture is of compare alone, "
        "--yes of remove).",
    ),
    Rule(
        COMPARE,
        FILTERS | {"--yes"},
        "compare takes the runs that are named after it, all of them, and removes none: omit "
        "{options}.",
    ),
    Rule(
        REMOVE,
        FILTERS | {"--picture"},
        "remove takes the runs that are named after it, all of them, and draws none: omit "
        "{options}. Nothing was removed.",
    ),
)
Text = str | None


def command(
    context: typer.Context,
    action: Annotated[str, typer.Argument(help="list, compare or remove.")] = LIST,
    names: Annotated[
        list[str] | None, typer.Argument(help="Runs, or texts in their names or settings.")
    ] = None,
    *,
    out: Annotated[Path, option(help="Folder of run folders.", metavar="FOLDER")] = Path("runs"),
    model: Annotated[Text, option(help="Only of this network.", metavar="NAME")] = None,
    method: Annotated[Text, option(help="Only of this method.", metavar="NAME")] = None,
    state: Annotated[
        Text, option(help="Only finished, running, stopped or damaged ones.", metavar="NAME")
    ] = None,
    picture: Annotated[
        Path | None, option(help="Of compare: draw the curves.", metavar="FILE")
    ] = None,
    yes: Annotated[bool, switch("--yes", help="Of remove: do not ask.")] = False,
) -> None:
    """List the runs in a folder, compare some, or remove one."""
    if action not in (LIST, COMPARE, REMOVE):
        raise nearest("action", action, (LIST, COMPARE, REMOVE))
    refuse_useless(RULES, given_options(context), {action})
    require_file_name(picture, "--picture")
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.cli.run_actions import compare, remove, show_list

    if action == LIST:
        show_list(out, names or [], model=model, method=method, state=state)
    elif action == COMPARE:
        compare(out, names or [], picture)
    else:
        remove(out, names or [], asked=not yes)
