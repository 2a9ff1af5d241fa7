"""The rows of the zoo for people: one line as each is measured, and one table of them all."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from zoo_networks import ZOO

Row = dict[str, Any]
CELLS = ("prune", "on paths", "SGD", "AdamW", "inference")
SHARES = ("on paths",)  # the others are ratios
HOLDING = ("SGD", "AdamW")


def shown(row: Row) -> str:
    """One row, as soon as it is measured."""
    parts = [f"{name} {_cell(row, name)}" for name in CELLS if name in row]
    parts += [f"FAILED: {row['failed'][:200]}"] if "failed" in row else []
    return f"  {row['network']:20} {row['sparsity']:.0%} {row['checkout']:6}: {'; '.join(parts)}"


def table(rows: Iterable[Row]) -> str:
    """A line per network: each cell has what was found at each sparsity, the lowest first."""
    rows = list(rows)
    sparsities = sorted({row["sparsity"] for row in rows})
    order = {network.name: at for at, network in enumerate(ZOO)}
    lines: dict[tuple[int, str, str], dict[float, Row]] = {}
    for row in rows:
        line = order.get(row["network"], len(order)), row["network"], row["checkout"]
        lines.setdefault(line, {})[row["sparsity"]] = row
    at = " / ".join(f"{sparsity:.0%}" for sparsity in sparsities)
    checkouts = len({row["checkout"] for row in rows}) > 1
    found = [["network", *(f"{name} at {at}" for name in CELLS), "measured"]]
    found.append(["---"] * len(found[0]))
    for (_, network, checkout), by_sparsity in sorted(lines.items(), key=lambda line: line[0]):
        given = [by_sparsity.get(sparsity, {}) for sparsity in sparsities]
        cells = [" / ".join(_cell(row, name) for row in given) for name in CELLS]
        when = dict.fromkeys(_when(row) for row in by_sparsity.values())
        found.append([f"{network}, {checkout}" if checkouts else network, *cells, "; ".join(when)])
    return "\n".join(f"| {' | '.join(line)} |" for line in found)


def spread(rows: Iterable[Row]) -> str:
    """Over all networks of this checkout: the lowest, the median and the highest of each ratio."""
    rows = [row for row in rows if row["checkout"] == "now"]
    lines = []
    for sparsity in sorted({row["sparsity"] for row in rows}):
        for name in HOLDING:
            found = sorted(
                row[name] for row in rows if row["sparsity"] == sparsity and row.get(name)
            )
            if found:
                low, middle, high = found[0], statistics.median(found), found[-1]
                lines.append(
                    f"{name} at {sparsity:.0%}, {len(found)} networks: lowest {low:.2f}x, "
                    f"median {middle:.2f}x, highest {high:.2f}x"
                )
    return "\n".join(lines)


def _cell(row: Row, name: str) -> str:
    """A cell for people; a dash where nothing was measured."""
    if name not in row:
        return "failed" if "failed" in row else "-"
    if row[name] is None:
        return "?"
    text = f"{row[name]:.0%}" if name in SHARES else f"{row[name]:.2f}x"
    if row.get(f"{name} engine") != "dense":
        return text
    # `accelerate` gave the user's own network back. In a training it still holds its masks.
    return f"{text} (dense)" if name in HOLDING else "as it was"


def _when(row: Row) -> str:
    """The day and the commit of a row, and the seconds that each of its ways was given."""
    day, commit = row.get("date", "unknown")[:10], row["commit"]
    return f"{day} {commit}, {row['seconds']:g} s" if "seconds" in row else f"{day} {commit}"
