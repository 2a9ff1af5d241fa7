"""What an experiment is: rows of runs with the paper's numbers, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snip.common.checks import checked_number
from snip.runs import RunConfig, RunResult
from snip.runs.pace import evaluation_work
from snip.training.schedule import shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Evaluations of a trial: a curve needs some points, however short it is.
FEWEST_POINTS, USUAL_POINTS = 3, 10
EVALUATED = 540  # steps between two evaluations where a schedule names none: an epoch of MNIST
DATA_NOTES = "data_notes"  # where measures keep what must be said of their data
HELD_OUT = (
    "Every seed holds the same images out for validation, so that the deviations do not have what "
    "another choice of them would add"
)
OF = "of"  # in `about` of a row that changes another: which, by network and sparsity
Record = dict[str, Any]  # what results/NAME.json holds, or a part of it
Column = Callable[[Record, Record], str]


@dataclass(frozen=True)
class Row:
    """One line of a table, or one point of a figure: a run that is done for every seed."""

    label: str
    config: RunConfig  # of any seed
    paper: str = ""  # the error in percent as the paper prints it; empty where it has none
    paper_std: float = 0.0  # in percent, where the paper gives it
    marked: bool = True  # held against the paper's number; not where the training is another
    seeds: int | None = None  # by default the experiment's
    about: Mapping[str, Any] = field(default_factory=dict)  # what else tables and figures use

    def at(self, seed: int) -> RunConfig:
        """The run of one seed."""
        return replace(self.config, seed=seed)

    def with_data(self, data_dir: Path | None) -> Row:
        """The row where data is looked for in this folder; most need no data to know their runs."""
        return self


def nothing_more(_result: RunResult, _data_dir: Path | None) -> Record:
    """For experiments that need no more of a run than its numbers."""
    return {}


@dataclass(frozen=True)
class Experiment:
    """Rows, and what is made of their results.

    `columns` are further columns of the table: a heading, and a function from a row of the record
    and the whole of it to a cell. `keep` is what the record holds of each run beside its numbers,
    for `draw`; `unpack(record)` is what `draw` begins with where that or a measure is packed.
    `measure(data_dir, seeds)` is for what needs no training; its outcome is `record["measured"]`,
    and `datasets` are those that it reads beside those of the rows. Where it is measured over
    seeds, `fewest_seeds` are those that it needs.
    `time(data_dir, seconds)` times networks on a quiet machine, about so long each:
    `record["timing"]`.
    """

    name: str
    title: str
    rows: Callable[[], Sequence[Row]] = tuple
    seeds: int = 3
    columns: tuple[tuple[str, Column], ...] = ()
    notes: tuple[str, ...] = ()
    keep: Callable[[RunResult, Path | None], Record] = nothing_more
    unpack: Callable[[Record], object] | None = None
    draw: Callable[[Record], Figure] | None = None
    measure: Callable[[Path | None, int], Record] | None = None
    fewest_seeds: int | None = None
    datasets: tuple[str, ...] = ()
    time: Callable[[Path | None, float], Record] | None = None
    measured_table: Callable[[Record], tuple[list[str], list[list[str]]]] | None = None


def scaled(config: RunConfig, scale: float) -> RunConfig:
    """The same run with its schedule squeezed into a fraction of its length; 1 changes nothing."""
    if scale == 1:
        return config
    train = config.training
    steps = max(1, round(train.iterations * scale))
    every = round(train.eval_every * scale) if train.eval_every else EVALUATED
    every = max(1, min(every, math.ceil(steps / _points(config, steps))))
    return replace(config, train=replace(shortened(train, steps), eval_every=every, seed=0))


def _points(config: RunConfig, steps: int) -> int:
    """How often a trial is evaluated: where it can be, for no longer than it trains."""
    affordable = int(steps * config.training.batch_size / evaluation_work(config))
    return max(FEWEST_POINTS, min(USUAL_POINTS, affordable))


def checked_scale(scale: float) -> float:
    """A fraction of the full schedule. Raises if it is none."""
    return checked_number("scale", scale, above=0, most=1)
