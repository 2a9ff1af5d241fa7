"""Does a FLOP budget buy more than a parameter budget: error, weights and step time at equal FLOPs.

The paper has no such table. The sparsities of the arms differ from seed to seed, as the scores do.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from snip.common.text import percent
from snip.data import load
from snip.experiments.budget_arms import ARMS, BASES, Arm, plan
from snip.experiments.kinds import Experiment, Record, Row
from snip.experiments.measures.times import DENSE, timing
from snip.masks import Masks, empty_layers
from snip.runs import RunConfig, RunResult
from snip.runs.folder import read_report
from snip.training.journal import MASKS


@dataclass(frozen=True)
class ArmRow(Row):
    """A row whose sparsity is found for each seed. `config` is the parameter budget at share 1."""

    arm: Arm = ARMS[0]
    data_dir: Path | None = None

    def at(self, seed: int) -> RunConfig:
        """The run of one seed."""
        return planned(replace(self.config, seed=seed), self.data_dir)[self.arm]

    def with_data(self, data_dir: Path | None) -> ArmRow:
        """The row where data is looked for in this folder."""
        return replace(self, data_dir=data_dir)


@cache
def planned(config: RunConfig, data_dir: Path | None = None) -> dict[Arm, RunConfig]:
    """The arms of one seed, scored once."""
    return plan(config, load(config.dataset, data_dir=data_dir))


def rows() -> list[Row]:
    """Every arm on every network."""
    return [
        ArmRow(arm.name, base, about={"budget": arm.budget, "share": arm.share}, arm=arm)
        for base in BASES
        for arm in ARMS
    ]


def keep(result: RunResult, _data_dir: Path | None) -> Record:
    """What a budget is about."""
    return {
        "flops_left": read_report(result.folder, "flops_ratio", float),
        "empty_layers": empty_layers(Masks.load(result.folder / MASKS)),
    }


def _flops(row: Record, _record: Record) -> str:
    return percent(statistics.mean(run["flops_left"] for run in row["runs"]))


def _sparsity(row: Record, _record: Record) -> str:
    return percent(statistics.mean(run["sparsity"] for run in row["runs"]))


def _kept(row: Record, _record: Record) -> str:
    return f"{statistics.mean(run['kept'] for run in row['runs']):,.0f}"


def _step(row: Record, record: Record) -> str:
    times = record.get("timing", {}).get(row["config"]["model"], {}).get("step_ms", {})
    return f"{times[row['label']]:.2f}" if row["label"] in times else "-"


def time_all(data_dir: Path | None, seconds: float) -> Record:
    """The time of a training step of every arm of seed 0, and of the dense network."""
    found = {}
    for base in BASES:
        dense = replace(base, sparsity=0, engine=DENSE)
        arms = {arm.name: config for arm, config in planned(base, data_dir).items()}
        found[base.model] = timing(dense, arms, seconds, data_dir, inference=False)
    return found


BUDGETS = Experiment(
    "budgets",
    "At equal FLOPs, does budget='flops' lose less than the parameter budget?",
    rows,
    seeds=3,
    columns=(
        ("sparsity here", _sparsity),
        ("FLOPs left", _flops),
        ("weights kept", _kept),
        ("step ms", _step),
    ),
    keep=keep,
    time=time_all,
    notes=(
        "The number in a label is the share of the FLOPs that the parameter budget leaves at 98% "
        "(lenet-5-caffe) and 90% (alexnet-s), which the sparsity column repeats",
        "lenet-5-caffe: ten epochs at the rate 0.03; alexnet-s: 1,000 steps where the paper has "
        "150,000: errors are only to be compared here",
    ),
)
