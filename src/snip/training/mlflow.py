"""A training's evaluations for MLflow, in the run's folder unless you say otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from snip.common.errors import imported
from snip.training.loggers import began, identity, scalars, writing
from snip.training.metrics import Metrics

FOLDER = "mlflow"
EXPERIMENT = "snip"
TAG = "snip.id"  # by which a run is found again
LONGEST = 500  # characters of a parameter that every store takes


class MLflow:
    """Logs into files beside the run's own; MLFLOW_TRACKING_URI names another store."""

    def __init__(self, folder: Path, config: Mapping[str, Any], inside: str = "") -> None:
        """Log the run in this folder; MissingPackageError without the library.

        `inside` names a training inside the run, which is shown as a run of its own.
        """
        library = imported("mlflow", "logging to MLflow", "mlflow")
        self._place = os.environ.get("MLFLOW_TRACKING_URI", "")
        if not self._place:
            self._place = (folder / FOLDER).resolve().as_uri()
            # Version 3.17 takes a store of files only if this is set.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._folder, self._config, self._library = folder, dict(config), library
        self._name = f"{folder.name} {inside}".rstrip()
        self._id = identity(folder, inside)
        self._client: Any = None
        self._run = ""
        self._began = 0.0

    def phase(self, name: str) -> MLflow:
        """A logger for a training that comes before, as a run of its own."""
        return MLflow(self._folder, self._config, name)

    def begin(self, history: Sequence[Metrics]) -> None:
        """Write the history anew, in a run that takes the place of the earlier one."""
        with self._writing():
            self._client = self._library.MlflowClient(tracking_uri=self._place)
            found = self._client.get_experiment_by_name(EXPERIMENT)
            where = (
                self._client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
            )
            for earlier in self._client.search_runs([where], f"tags.`{TAG}` = '{self._id}'"):
                self._client.delete_run(earlier.info.run_id)
            made = self._client.create_run(where, run_name=self._name, tags={TAG: self._id})
            self._run = made.info.run_id
            for name, value in _flat(self._config).items():
                self._client.log_param(self._run, name, str(value)[:LONGEST])
        self._began = began(history)
        for metrics in history:
            self.record(metrics)

    def record(self, metrics: Metrics) -> None:
        """Log one evaluation."""
        when = int(1000 * (self._began + metrics.seconds))
        kind = self._library.entities.Metric
        with self._writing():
            parts = [
                kind(name, value, when, metrics.iteration)
                for name, value in scalars(metrics).items()
            ]
            self._client.log_batch(self._run, metrics=parts)

    def end(self) -> None:
        """Close the run."""
        if self._run:
            with self._writing():
                self._client.set_terminated(self._run)
            self._run = ""

    def _writing(self) -> AbstractContextManager[None]:
        return writing(f"MLflow at {self._place}", (self._library.MlflowException,))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under names with dots."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
