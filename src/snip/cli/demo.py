"""`snip demo`: the whole method in two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from safetensors.torch import load_file

from snip.cli.flags import SHORT, run_config
from snip.cli.options import Threads, option, switch
from snip.common.console import remark, say, show_table, size
from snip.common.device import set_up_torch
from snip.common.errors import InputError
from snip.common.figures import percent
from snip.common.places import exists
from snip.engine.choice import ENGINES
from snip.export import compact
from snip.masks import Masks
from snip.models import build
from snip.reports.pictures import survivors
from snip.runs import RunConfig, RunResult, run
from snip.runs.folder import RESULT, SELECTED
from snip.training.journal import MASKS

DETAILS = (
    "Both networks are trained on the MNIST that is part of the package, one after the other, "
    "on a short schedule."
)
EXAMPLES = (
    "snip demo",
    "snip demo --sparsity 0.99",
    "snip demo --engine sparse --iterations 20000",
)
MODEL = "lenet-300-100"


def command(
    *,
    sparsity: Annotated[float, option(help="Fraction removed.", metavar="X")] = 0.95,
    iterations: Annotated[int, option(help="Steps of each training.", metavar="N")] = 5000,
    seed: Annotated[int, option(help="Of both runs.", metavar="N")] = 0,
    out: Annotated[Path, option(help="Where the runs go.", metavar="FOLDER")] = Path("runs/demo"),
    engine: Annotated[str, option(help=f"One of {', '.join(ENGINES)}.", metavar="NAME")] = "auto",
    resume: Annotated[bool, switch(help="Go on from the last checkpoint.")] = True,
    # More threads gain nothing on a network this small, and lose much on a busy machine.
    threads: Threads = 1,
) -> None:
    """Prune LeNet-300-100 and train it beside the dense one."""
    set_up_torch(threads=threads, device="cpu")
    flags = {"model": MODEL, "dataset": "mnist", "iterations": iterations, "seed": seed}
    # Both are made before either runs: a mistake is told at once.
    reference = run_config({**flags, "sparsity": 0.0}, schedule=SHORT)
    config = run_config({**flags, "sparsity": sparsity, "engine": engine}, schedule=SHORT)
    if config.sparsity == 0:
        raise InputError("sparsity is 0: there would be nothing to compare. Try 0.95.")
    dense, pruned = _run(reference, out, resume), _run(config, out, resume)
    picture = out / "survivors.png"
    survivors(Masks.load(pruned.folder / MASKS), picture)
    _show(dense, pruned)
    say(f"\nWhat survived: {picture}")


def _run(config: RunConfig, out: Path, resume: bool) -> RunResult:
    what = f"{config.sparsity:.0%} pruned" if config.sparsity else "dense"
    known = resume and exists(out / config.folder_name / RESULT)
    remark(
        f"{MODEL}, {what}: "
        + ("trained before, --no-resume trains it again" if known else "training ...")
    )
    return run(config, out, resume=resume)


def _show(dense: RunResult, pruned: RunResult) -> None:
    rows = {"dense": dense, f"pruned {percent(pruned.sparsity)}": pruned}
    files = dense.folder / SELECTED, _compact_file(pruned)
    show_table(
        ("", "test error", "connections", "file", "seconds"),
        [
            (
                name,
                percent(result.test_error),
                result.kept,
                size(file.stat().st_size),
                f"{result.seconds:.1f}",
            )
            for (name, result), file in zip(rows.items(), files, strict=True)
        ],
    )
    say(f"{dense.total / pruned.kept:.0f} times fewer connections, chosen before the first step.")
    if pruned.engine.get("engine") == "dense":
        say("Training is not faster: zeros were multiplied too; --engine sparse leaves them out.")


def _compact_file(pruned: RunResult) -> Path:
    """The pruned network in a file of its surviving weights."""
    model = build(MODEL)
    Masks.load(pruned.folder / MASKS).apply(model)
    model.load_state_dict(load_file(pruned.folder / SELECTED))
    path = pruned.folder / "compact.safetensors"
    compact.save(model, path)
    return path
