"""A training's evaluations for TensorBoard, in a folder beside its metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from snip.common import files
from snip.common.errors import imported
from snip.common.files import remove
from snip.training.loggers import began, scalars, writing
from snip.training.metrics import Metrics

FOLDER = "tensorboard"
EVENTS = "events.out.tfevents."  # how TensorBoard's own files begin


class TensorBoard:
    """Writes event files by torch's SummaryWriter; the configuration goes along as text."""

    def __init__(self, folder: Path, config: Mapping[str, Any], inside: str = "") -> None:
        """Log into a folder inside the run's; MissingPackageError without the library.

        `inside` names a folder in that one, which TensorBoard shows as a run of its own.
        """
        module = imported(
            "torch.utils.tensorboard", "logging to TensorBoard", "tensorboard",
            library="tensorboard",
        )  # fmt: skip
        self._run, self._folder = folder, folder / FOLDER / inside
        self._config, self._make = config, module.SummaryWriter
        self._writer: Any = None
        self._began = 0.0

    def begin(self, history: Sequence[Metrics]) -> None:
        """Write the history anew: a reader never sees a point that a resumed run does again."""
        with writing(str(self._folder)):
            if files.is_folder(self._folder):
                for name in files.names_in(self._folder):
                    if name.startswith(EVENTS):
                        remove(self._folder / name)
            self._writer = self._make(str(self._folder))
            text = json.dumps(dict(self._config), indent=2)
            # Indented text is shown as it stands: Markdown takes it for code.
            self._writer.add_text("configuration", "    " + text.replace("\n", "\n    "))
        self._began = began(history)
        for metrics in history:
            self.record(metrics)

    def record(self, metrics: Metrics) -> None:
        """Write one evaluation, and let a TensorBoard that is watching see it at once."""
        when = self._began + metrics.seconds
        with writing(str(self._folder)):
            for name, value in scalars(metrics).items():
                self._writer.add_scalar(name, value, metrics.iteration, walltime=when)
            self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        if self._writer is not None:
            # A write that failed has been told by then, and fails here once more.
            with suppress(OSError):
                self._writer.close()
            self._writer = None

    def phase(self, name: str) -> TensorBoard:
        """A logger for a training that comes before, in a folder of its own."""
        return TensorBoard(self._run, self._config, name)
