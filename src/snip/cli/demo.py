"""`snip demo`: the whole method in two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from snip.cli.options import SHORT, Threads, flag_rows, option, switch
from snip.common.console import say
from snip.common.errors import InputError
from snip.common.machine import set_up_torch

DETAILS = (
    "Both networks are trained on the MNIST that is part of the package, one after the other, "
    "on a short schedule."
)
EXAMPLES = (
    "snip demo",
    "snip demo --sparsity 0.99",
    "snip demo --engine sparse --iterations 20000",
)
ENGINES = ", ".join(flag_rows()["engine"]["suggested"])


def command(
    *,
    sparsity: Annotated[float, option(help="Fraction removed.", metavar="X")] = 0.95,
    iterations: Annotated[int, option(help="Steps of each training.", metavar="N")] = 5000,
    seed: Annotated[int, option(help="Of both runs.", metavar="N")] = 0,
    out: Annotated[Path, option(help="Where the runs go.", metavar="FOLDER")] = Path("runs/demo"),
    engine: Annotated[str, option(help=f"One of {ENGINES}.", metavar="NAME")] = "auto",
    resume: Annotated[bool, switch(help="Go on from the last checkpoint.")] = True,
    # More threads gain nothing on a network this small, and lose much on a busy machine.
    threads: Threads = 1,
) -> None:
    """Prune LeNet-300-100 and train it beside the dense one."""
    # Imported here, because this loads torch, and a help text needs none of it.
    from snip.cli.configuration import run_config
    from snip.cli.demo_comparison import MODEL, run_one, show_both
    from snip.masks import Masks
    from snip.reports.pictures import survivors
    from snip.training.journal import MASKS

    set_up_torch(threads=threads, device="cpu")
    flags = {"model": MODEL, "dataset": "mnist", "iterations": iterations, "seed": seed}
    # Both are made before either runs: a mistake is told at once.
    reference = run_config({**flags, "sparsity": 0.0}, schedule=SHORT)
    config = run_config({**flags, "sparsity": sparsity, "engine": engine}, schedule=SHORT)
    if config.sparsity == 0:
        raise InputError("sparsity is 0: there would be nothing to compare. Try 0.95.")
    dense, pruned = run_one(reference, out, resume), run_one(config, out, resume)
    picture = out / "survivors.png"
    survivors(Masks.load(pruned.folder / MASKS), picture)
    show_both(dense, pruned, out)
    say(f"\nWhat survived: {picture}")
