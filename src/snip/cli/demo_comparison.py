"""The work of `snip demo`: train two networks and show them beside each other."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from snip.common.console import remark, say, show_table
from snip.common.files import exists
from snip.common.text import percent, size
from snip.export import compact
from snip.masks import Masks
from snip.models import build
from snip.runs import RunConfig, RunResult, run
from snip.runs.folder import RESULT, SELECTED
from snip.training.journal import MASKS

MODEL = "lenet-300-100"


def run_one(config: RunConfig, out: Path, resume: bool) -> RunResult:
    """Train one of the two networks, or find that it is trained."""
    what = f"{config.sparsity:.0%} pruned" if config.sparsity else "dense"
    known = resume and exists(out / config.folder_name / RESULT)
    remark(
        f"{MODEL}, {what}: "
        + ("trained before, --no-resume trains it again" if known else "training ...")
    )
    return run(config, out, resume=resume)


def show_both(dense: RunResult, pruned: RunResult, out: Path) -> None:
    """Print the dense and the pruned network beside each other."""
    rows = {"dense": dense, f"pruned {percent(pruned.sparsity)}": pruned}
    files = dense.folder / SELECTED, _compact_file(pruned, out / "compact.safetensors")
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


def _compact_file(pruned: RunResult, path: Path) -> Path:
    """The pruned network in a file of its surviving weights.

    It is no file of the run's: a finished run's folder stays as the run left it.
    """
    model = build(MODEL)
    Masks.load(pruned.folder / MASKS).apply(model)
    model.load_state_dict(load_file(pruned.folder / SELECTED))
    compact.save(model, path)
    return path
