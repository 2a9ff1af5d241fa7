"""Claims about labels that were dealt out at random: figures 4 and B."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from snip.common.text import short_percent
from snip.experiments.claims.facts import Fact, Records, rows_of, rows_run
from snip.experiments.fig4 import NAMES
from snip.experiments.kinds import Record
from snip.experiments.measures.curves import at_end
from snip.experiments.records.comparison import diverged

HALF, FITTED = 0.5, 0.05  # training errors: half the labels are learnt, nearly all are
CURVES_OF_CLAIM = ("dense", "decayed", "pruned", "true")
SAME = 0.05  # training losses so near to each other are the same; that of guessing is 2.30


def memorised(records: Records) -> Iterator[Fact]:
    """The curves of figure 4 where they end."""
    every = rows_of(records, "fig4")
    if not every:
        return
    rows = rows_run(records, "fig4")
    found = {row["label"]: _ends(row, "train_error") for row in rows}
    told = "; ".join(
        f"{label}: {'diverged' if math.isnan(error) else short_percent(error)}"
        for label, error in found.items()
    )
    dense, decayed, pruned, true = (found.get(NAMES[name], math.nan) for name in CURVES_OF_CLAIM)
    holds = None
    if not any(map(math.isnan, (dense, decayed, pruned, true))):
        holds = max(dense, decayed) < HALF < pruned and true < FITTED
    said = f"training error at the end (fig4): {told or 'not run yet'}"
    yield Fact(said, holds, alone=_alone(rows), missing=len(rows) < len(every))


def by_sparsity(records: Records) -> Iterator[Fact]:
    """Whether the training loss of figure B rises with the sparsity.

    One fall refutes it, whatever is not run yet.
    """
    known = rows_run(records, "figB")
    rows = sorted(rows_of(records, "figB"), key=lambda row: float(row["config"]["sparsity"]))
    if not rows:
        return
    losses = [_ends(row, "train_loss") for row in rows]
    falls = [
        f"from {before['label']} to {after['label']} it falls by {high - low:.2f}"
        for (before, after), (high, low) in zip(pairwise(rows), pairwise(losses), strict=True)
        if low < high - SAME
    ]
    holds = None if any(map(math.isnan, losses)) else losses[-1] > losses[0] + SAME
    told = [_loss(row, loss) for row, loss in zip(rows, losses, strict=True)]
    said = f"training loss at the end over the sparsity (figB): {'; '.join([*told, *falls])}"
    missing = len(known) < len(rows)
    yield Fact(said, False if falls else holds, alone=_alone(known), missing=missing)


def _loss(row: Record, loss: float) -> str:
    if math.isnan(loss):
        return f"{row['label']} {'diverged' if diverged(row) else 'not run yet'}"
    return f"{row['label']} {loss:.2f}"


def _alone(rows: list[Record]) -> bool:
    """Whether the spread over seeds is not known of a row that has a run."""
    return any(len(row["runs"]) == 1 for row in rows)


def _ends(row: Record, what: str) -> float:
    """A number of the training where it ends, over the seeds; none of a row that has none."""
    # No mean of the others makes up for a seed that diverged.
    return math.nan if diverged(row) else at_end(row, what)
