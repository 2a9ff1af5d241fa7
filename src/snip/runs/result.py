"""The result of a run, with all that is needed to repeat it and to compare it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from snip.common.checks import check_kinds
from snip.common.files import read_json, reading
from snip.common.machine import cpu_name
from snip.runs.config import RunConfig
from snip.runs.folder import RESULT
from snip.runs.sums import require_as_summed
from snip.training.journal import METRICS
from snip.training.metrics import Metrics, read_metrics

FRACTIONS = (
    "sparsity", "test_error", "valid_error", "final_test_error", "best_test_error", "chance_error",
)  # fmt: skip


@dataclass(frozen=True)
class RunResult:
    """One finished run; errors and sparsities are fractions."""

    config: RunConfig
    folder: Path
    sparsity_asked: float
    sparsity: float
    kept: int
    total: int
    test_error: float  # of the model that validation selects; this is the result
    test_loss: float
    valid_error: float | None
    selected_iteration: int
    final_test_error: float  # of the model after the last step
    best_test_error: float  # the lowest of all evaluations, selected on test data as the authors do
    protocol: str
    seeds: dict[str, int]
    dataset_note: str
    seconds: float  # wall clock, pauses of the process included
    steps_per_second: float
    versions: dict[str, str]
    machine: dict[str, Any]
    device: str
    threads: int  # with another number, sums may differ in their last bits
    date: str
    # What a result of an older version does not say.
    engine: dict[str, Any] = field(default_factory=dict)  # what ran, and the times that chose it
    chance_error: float | None = None  # of always answering the test set's most frequent class
    test_images: int | None = None
    cpu_seconds: float | None = None  # of all threads, pauses not included
    commit: str = ""  # of the code that ended the run; empty for an installed package
    # Of a method that trains: what was done beside its own rule, and each training before the last.
    note: str | None = None
    cost: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON writes them, without the place of the folder."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del fields["folder"]
        return fields | {"config": self.config.to_dict()}

    @classmethod
    def read(cls, folder: Path, *, verify: bool = True) -> RunResult:
        """The result that a finished run left in its folder; `verify` refuses an altered one."""
        path, fix = folder / RESULT, "delete it and run again, the checkpoint keeps the work"
        data = read_json(path, fix=fix)
        with reading(path, fix=fix):
            data["config"] = RunConfig.from_dict(data["config"])
            result = cls(folder=folder, **data)
            check_kinds(result, "a result")
            result._check_values()
        if verify:
            require_as_summed(path)
        return result

    def _check_values(self) -> None:
        """Refuse what no run can have written; for `reading`, which names the file."""
        for name in FRACTIONS:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}")
        if self.test_images is not None and self.test_images < 1:
            raise ValueError(f"test_images is {self.test_images}")
        times = self.engine.get("step_seconds", {})
        named = isinstance(self.engine.get("engine", ""), str)
        if not named or not isinstance(times, dict):
            raise ValueError("engine is no record of an engine")
        if not all(isinstance(seconds, (int, float)) for seconds in times.values()):
            raise ValueError("step_seconds has something else than numbers")

    def history(self) -> list[Metrics]:
        """The evaluations on the way, from the folder's metrics.jsonl."""
        require_as_summed(self.folder / METRICS)
        return read_metrics(self.folder / METRICS)

    @property
    def engine_note(self) -> str:
        """Which engine ran and why, for people."""
        name = self.engine.get("engine", "not known")
        times = self.engine.get("step_seconds", {})
        timed = ", ".join(f"{way} {seconds * 1e3:.3g} ms" for way, seconds in times.items())
        asked = f"{self.config.engine} was asked for"
        return f"{name} ({f'a step was timed: {timed}' if timed else asked})"


def environment(device: torch.device) -> dict[str, Any]:
    """When and on which machine a result was made. Nothing in it names a person or a host."""
    return {
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count()},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
