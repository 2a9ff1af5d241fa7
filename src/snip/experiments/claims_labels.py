"""Claims about labels that were dealt out at random: figures 4 and B."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise

from snip.common.figures import short_percent
from snip.experiments.judging import Fact, Records, rows_run
from snip.experiments.kinds import Record
from snip.experiments.random_labels import NAMES

HALF, FITTED = 0.5, 0.05  # training errors: half the labels are learnt, nearly all are
SAME = 0.05  # training losses so near to each other are the same; that of guessing is 2.30


def memorised(records: Records) -> Iterator[Fact]:
    """The curves of figure 4 where they end."""
    found = {row["label"]: _ends(row, "train_error") for row in rows_run(records, "fig4")}
    if not found:
        return
    told = "; ".join(f"{label}: {short_percent(error)}" for label, error in found.items())
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
    """Whether the training loss of figure B rises with the sparsity."""
    rows = sorted(rows_run(records, "figB"), key=lambda row: float(row["config"]["sparsity"]))
    if not rows:
        return
    losses = [_ends(row, "train_loss") for row in rows]
    told = "; ".join(f"{row['label']} {loss:.2f}" for row, loss in zip(rows, losses, strict=True))
    missing = len(records["figB"]["rows"]) - len(rows)
    said = f"; {missing} sparsities are not run yet" if missing else ""
    rises = None if missing else losses[-1] > losses[0] + SAME
    yield Fact(f"training loss at the end over the sparsity (figB): {told}{said}", rises)
    if missing:
        return
    falls = [
        f"from {before['label']} to {after['label']} it falls by {high - low:.2f}"
        for (before, after), (high, low) in zip(pairwise(rows), pairwise(losses), strict=True)
        if low < high - SAME
    ]
    fewest = min(len(row["runs"]) for row in rows)
    alone = " (a single seed, of which the spread is not known)" if falls and fewest == 1 else ""
    steps = "; ".join(falls) or f"from none to the next it falls by more than {SAME:g}"
    yield Fact(f"from each sparsity to the next (figB): {steps}{alone}", not falls)


def _ends(row: Record, what: str) -> float:
    return statistics.mean(run["curve"][what][-1] for run in row["runs"])
