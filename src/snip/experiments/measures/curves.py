"""How trainings went, as records keep it: a few numbers of each run's evaluations, as a curve."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

from snip.experiments.kinds import Record
from snip.runs import RunResult

MOST_POINTS = 150  # of a curve in the record
STEPS = "iteration"


@dataclass(frozen=True)
class Curves:
    """Which numbers of the evaluations are kept; the steps always are, before them."""

    numbers: tuple[str, ...]

    def keep(self, result: RunResult, _data_dir: Path | None) -> Record:
        """The curve of one run, thinned out if it has very many points."""
        history = result.history()
        every = max(1, math.ceil(len(history) / MOST_POINTS))
        lines = history[every - 1 :: every]
        if lines[-1:] != history[-1:]:  # where the training ended is what the claims are about
            lines.append(history[-1])
        names = (STEPS, *self.numbers)
        return {
            "curve": {name: [round(getattr(line, name), 5) for line in lines] for name in names}
        }

    def unpack(self, record: Record) -> list[list[torch.Tensor]]:
        """The curve of each run of each row, [1 + numbers, points]; older records have none."""
        return [
            [self._curve(run["curve"]) for run in row["runs"] if "curve" in run]
            for row in record["rows"]
        ]

    def _curve(self, curve: Record) -> torch.Tensor:
        return torch.tensor([curve[name] for name in (STEPS, *self.numbers)], dtype=torch.float64)


def at_end(row: Record, what: str) -> float:
    """A number of a row's trainings where they end, the mean over its runs; NaN without any."""
    ends = [run["curve"][what][-1] for run in row["runs"]]
    return statistics.mean(ends) if ends else math.nan
