"""A training's evaluations for Weights & Biases, in the run's folder unless you say otherwise."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from snip.common import files
from snip.common.errors import imported
from snip.training.loggers import identity, scalars, writing
from snip.training.metrics import Metrics

FOLDER = "wandb"  # which the library makes itself, under this name
OFFLINE = "offline-run-"  # how the folders of its offline runs begin
PROJECT = "snip"


class WandB:
    """Logs offline, for `wandb sync` to upload; WANDB_MODE=online sends it at once."""

    def __init__(self, folder: Path, config: Mapping[str, Any], inside: str = "") -> None:
        """Log the run in this folder; MissingPackageError without the library.

        `inside` names a training inside the run, which is shown as a run of its own.
        """
        self._library = imported("wandb", "logging to Weights & Biases", "wandb")
        self._folder, self._config = folder, dict(config)
        self._name = f"{folder.name} {inside}".rstrip()
        self._id = identity(folder, inside)
        self._run: Any = None

    def phase(self, name: str) -> WandB:
        """A logger for a training that comes before, as a run of its own."""
        return WandB(self._folder, self._config, name)

    def begin(self, history: Sequence[Metrics]) -> None:
        """Write the history anew. Online, W&B keeps the first value of each step that it has."""
        quiet = {"console": "off", "silent": True, "save_code": False, "disable_git": True}
        with self._writing():
            self._remove_earlier()
            self._run = self._library.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=self._name,
                id=self._id,
                dir=str(self._folder),
                config=self._config,
                mode=os.environ.get("WANDB_MODE", "offline"),
                resume="allow" if os.environ.get("WANDB_MODE") == "online" else None,
                reinit="create_new",
                settings=self._library.Settings(**quiet, x_disable_stats=True),
            )
        for metrics in history:
            self.record(metrics)

    def record(self, metrics: Metrics) -> None:
        """Log one evaluation."""
        with self._writing():
            self._run.log(scalars(metrics), step=metrics.iteration)

    def end(self) -> None:
        """Write out what is held back."""
        if self._run is not None:
            with self._writing():
                self._run.finish()
            self._run = None

    def _writing(self) -> AbstractContextManager[None]:
        return writing(f"W&B in {self._folder / FOLDER}", (self._library.Error,))

    def _remove_earlier(self) -> None:
        place = self._folder / FOLDER
        for name in files.names_in(place) if files.is_folder(place) else ():
            if name.startswith(OFFLINE) and name.endswith(self._id):
                shutil.rmtree(place / name)
