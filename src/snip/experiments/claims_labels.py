"""Claims about labels that were dealt out at random: figures 4 and B."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise

from snip.common.figures import short_percent
from snip.experiments.judging import Fact, Records, diverged, rows_run
from snip.experiments.kinds import Record
from snip.experiments.random_labels import NAMES

HALF, FITTED = 0.5, 0.05  # training errors: half the labels are learnt, nearly all are
SAME = 0.05  # training losses so near to each other are the same; that of guessing is 2.30


def memorised(records: Records) -> Iterator[Fact]:
    """The curves of figure 4 where they end."""
    found = {row["label"]: _ends(row, "train_error") for row in rows_run(records, "fig4")}
    if not found:
        return
    parts = [f"{label}: {short_percent(error)}" for label, error in found.items()]
    told = "; ".join([*parts, *_alone(rows_run(records, "fig4"))])
    dense, pruned, true = (found.get(NAMES[name]) for name in ("dense", "pruned", "true"))
    holds = None
    if dense is not None and pruned is not None and true is not None:
        holds = dense < HALF < pruned and true < FITTED
    yield Fact(f"training error at the end (fig4): {told}", holds)
    decayed = found.get(NAMES["decayed"])
    if decayed is None:
        yield Fact(f"{NAMES['decayed']} (fig4): not run yet")
    else:
        said = f"{NAMES['decayed']} (fig4): training error {short_percent(decayed)} at the end"
        yield Fact(said, decayed < HALF)


def by_sparsity(records: Records) -> Iterator[Fact]:
    """Whether the training loss of figure B rises with the sparsity.

    One fall refutes it, whatever is not run yet.
    """
    known = rows_run(records, "figB")
    if not known:
        return
    rows = sorted(records["figB"]["rows"], key=lambda row: float(row["config"]["sparsity"]))
    losses = [_ends(row, "train_loss") for row in rows]
    falls = [
        f"from {before['label']} to {after['label']} it falls by {high - low:.2f}"
        for (before, after), (high, low) in zip(pairwise(rows), pairwise(losses), strict=True)
        if low < high - SAME
    ]
    holds = None if any(map(math.isnan, losses)) else losses[-1] > losses[0] + SAME
    told = [_loss(row, loss) for row, loss in zip(rows, losses, strict=True)]
    said = "; ".join([*told, *falls, *_alone(known)])
    yield Fact(
        f"training loss at the end over the sparsity (figB): {said}", False if falls else holds
    )


def _loss(row: Record, loss: float) -> str:
    if math.isnan(loss):
        return f"{row['label']} {'diverged' if diverged(row) else 'not run yet'}"
    return f"{row['label']} {loss:.2f}"


def _alone(rows: list[Record]) -> list[str]:
    """A remark on results of which the spread over seeds is not known."""
    return ["of a single seed"] if min(len(row["runs"]) for row in rows) < 2 else []


def _ends(row: Record, what: str) -> float:
    """A number of the training where it ends, over the seeds; none of a row without a run."""
    ends = [run["curve"][what][-1] for run in row["runs"]]
    return statistics.mean(ends) if ends else math.nan
