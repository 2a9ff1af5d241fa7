"""Records of experiments by hand, without any run."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from snip.experiments import EXPERIMENTS
from snip.experiments.kinds import Record, Row
from snip.experiments.measures.maps import packed
from snip.experiments.records.record import Known, make_record
from snip.runs import RunConfig

SPREAD = (-0.001, 0.0, 0.001)  # a standard deviation of 0.1 points over three seeds
# By Student's t, chance moves a difference of two such means by up to 0.227 points.


def around(error: float) -> list[float]:
    """Errors of three seeds with this mean."""
    return [error + one for one in SPREAD]


def entry(config: RunConfig, error: float, **more: Any) -> Record:
    """What a record holds of a run."""
    picture = packed(torch.linspace(0, 1, 784))
    curve = {"iteration": [1, 2], "train_loss": [2.3, 0.1], "train_error": [0.9, 0.1]}
    curve["test_error"] = [0.9, error]
    return {
        "run": config.folder_name, "seed": config.seed, "iterations": 10, "seconds": 1.5,
        "cost": {"first training": {"iterations": 5, "seconds": 0.5}}, "dataset_note": "",
        "test_error": error, "best_test_error": error / 2, "kept": 10, "map": picture,
        "correlation": 0.5, "curve": curve, "date": "2026-11-17T01:00:00+00:00",
        "sparsity": config.sparsity, "total": 100, "final_test_error": error, "threads": 1,
        "valid_error": error, "selected_iteration": 10, "note": None, "versions": {"snip": "1"},
        "machine": {"cpu": "a processor", "cores": 2}, "commit": "abc1234", **more,
    }  # fmt: skip


def record_with(
    name: str, errors: Callable[[Row], Sequence[float]], scale: float = 1.0, **more: Any
) -> Record:
    """A record in which each row has a run for each of these errors; `more` is in every run."""
    experiment = EXPERIMENTS[name]
    runs = {}
    for row in experiment.rows():
        for seed, error in enumerate(errors(row)):
            config = row.at(seed)
            runs[config.folder_name] = entry(config, error, **more)
    asked = [(row, range(2)) for row in experiment.rows()]
    beside = {"measured": {"mean": packed(torch.zeros(784))}} if name == "fig3" else {}
    command = f"snip reproduce {name}"
    return make_record(experiment, asked, Known(runs), scale=scale, command=command, more=beside)


def record_of(name: str, rows: Sequence[Row], seeds: int = 2) -> Record:
    """A record at half the schedule in which these of the experiment's rows are run."""
    configs = [row.config for row in rows]

    def errors(row: Row) -> list[float]:
        if row.config not in configs:
            return []
        number = configs.index(row.config)
        return [0.01 + 0.001 * (number + seed) for seed in range(seeds)]

    return record_with(name, errors, scale=0.5)
