"""Numbers over seeds, and whether they agree with the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

AGREES, ROUNDED, LOWER, HIGHER = "agrees", "agrees by rounding", "lower", "higher"
MARKS = {AGREES: "✓", ROUNDED: "(✓)", LOWER: "↓", HIGHER: "↑", None: ""}
LEGEND = (
    f"{MARKS[AGREES]} agrees with the paper within two standard deviations, {MARKS[ROUNDED]} only "
    f"if what the paper's last digit rounds away is allowed as well, {MARKS[LOWER]} is lower, "
    f"{MARKS[HIGHER]} is higher; no mark: a single seed, seeds that differ too much to tell, or "
    "a row that is not held against the paper because its training is another"
)
DEVIATIONS = 2.0


def summary(errors: Sequence[float], paper: str = "", paper_std: float = 0.0) -> dict[str, object]:
    """Mean and standard deviation of fractions, in percent, and how they stand to the paper.

    Of a single value there is no deviation, and nothing is said of the paper; nor is it where two
    deviations are more than the mean, as if a run learns and another does not.
    """
    percents = [100 * error for error in errors]
    mean = statistics.mean(percents)
    std = statistics.stdev(percents) if len(percents) > 1 else None
    return {"mean": mean, "std": std, "against": _against(mean, std, paper, paper_std)}


def _against(mean: float, std: float | None, paper: str, paper_std: float) -> str | None:
    if std is None or not paper:
        return None
    if DEVIATIONS * std > mean:  # seeds that do not agree with each other agree with everything
        return None
    # A number that is printed as 1.6 may have been anything from 1.55 to 1.65.
    rounding = 0.5 * 10.0 ** -len(paper.partition(".")[2])
    allowed = DEVIATIONS * math.hypot(std, paper_std)
    distance = mean - float(paper)
    if abs(distance) <= allowed + rounding:
        return AGREES if abs(distance) <= allowed else ROUNDED
    return LOWER if distance < 0 else HIGHER


def shown(found: dict[str, object] | None) -> str:
    """A mean with its deviation and the mark, as tables print it."""
    if found is None:
        return "-"
    std, against = found["std"], found["against"]
    spread = "" if std is None else f" ± {std:.2f}"
    mark = MARKS[against]  # type: ignore[index]
    return f"{found['mean']:.2f}{spread}{' ' + mark if mark else ''}"
