"""The files of one training run in its folder, and the way back to its last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snip.common import files
from snip.common.errors import FileError
from snip.common.lock import Lock
from snip.training.checkpoint import restore, save_checkpoint
from snip.training.metrics import Metrics
from snip.training.state import State

CHECKPOINT = "checkpoint.pt"
METRICS = "metrics.jsonl"
MASKS = "masks.safetensors"
ENGINE = "engine.json"
# Files are deleted in this order: a process that is killed in between never leaves a checkpoint
# beside masks that are not its own.
STARTED_OVER = (CHECKPOINT, MASKS, ENGINE)


class Journal:
    """Writes metrics and checkpoints, and restores the last; does nothing without a folder."""

    def __init__(self, lock: Lock, identity: Mapping[str, Any], *, every: float) -> None:
        """Keep the run `identity` in the locked folder, a checkpoint `every` so many seconds."""
        self._lock = lock
        self._folder = lock.folder
        self._identity = identity
        self._every = every
        self._saved_at = time.monotonic()
        self._saved_iteration: int | None = None
        self._written: tuple[int, int, int] | None = None  # metrics.jsonl as it was last written
        self._watched: tuple[str, ...] = ()

    def watch(self, names: tuple[str, ...]) -> None:
        """Stop the training at its next write if one of these files of the folder is gone."""
        self._watched = names

    def open(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        resume: bool,
        validates: bool,
        stepped: bool,
        hooks: nn.Module | None = None,
    ) -> State:
        """Restore the last checkpoint. Returns the state there, or a fresh one if there is none."""
        if self._folder is None:
            return State()
        files.remove_leftovers(self._folder)
        path = self._folder / CHECKPOINT
        for name in () if resume else STARTED_OVER:
            files.remove(self._folder / name)
        state = State()
        if files.exists(path):
            state = restore(
                path,
                model=model,
                optimizer=optimizer,
                identity=self._identity,
                validates=validates,
                stepped=stepped,
                hooks=hooks,
            )
            self._saved_iteration = state.iteration
        # Lines written after the checkpoint are dropped: the resumed training writes them again.
        lines = "".join(f"{line.to_line()}\n" for line in state.history)
        files.write_text(self._folder / METRICS, lines)
        self._written = _file_at(self._folder / METRICS)
        return state

    def record(self, metrics: Metrics) -> None:
        """Append one evaluation."""
        if self._folder is None:
            return
        with self._writing():
            files.append_line(self._folder / METRICS, metrics.to_line())
        self._written = _file_at(self._folder / METRICS)

    def due(self) -> bool:
        """Whether the last checkpoint is old enough for a new one."""
        return self._folder is not None and time.monotonic() - self._saved_at >= self._every

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        state: State,
        hooks: nn.Module | None = None,
    ) -> None:
        """Write a checkpoint in place of the last."""
        if self._folder is None:
            return
        with self._writing():
            save_checkpoint(
                self._folder / CHECKPOINT,
                model=model,
                optimizer=optimizer,
                state=state.to_dict(),
                identity=self._identity,
                hooks=hooks,
            )
        self._saved_at = time.monotonic()
        self._saved_iteration = state.iteration

    def last_good(self) -> str:
        """A sentence that names the last good checkpoint, for an error message."""
        if self._folder is None:
            return "No checkpoint was kept, as no folder was given"
        if not self._has_checkpoint():
            return "There is no checkpoint"
        return (
            f"The last good checkpoint is {self._folder / CHECKPOINT}, "
            f"at iteration {self._saved_iteration}"
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Around a write: refuse if files are others; a write that fails says what is safe."""
        self._lock.require()
        found = None if self._folder is None else _file_at(self._folder / METRICS)
        if self._folder is not None and found != self._written:
            raise FileError(
                f"{self._folder / METRICS} was {'replaced or altered' if found else 'deleted'} "
                f"while the training ran: the training stopped. {self._way_on()}"
            )
        self._require_watched()
        try:
            yield
        except FileError as error:
            raise FileError(f"{error} {self._way_on()}") from error

    def _require_watched(self) -> None:
        watched = [] if self._folder is None else [self._folder / name for name in self._watched]
        for path in watched:
            if not files.exists(path):
                ours = path.name in (MASKS, ENGINE)  # which a resumed training makes again
                way_on = self._way_on() if ours else f"{self.last_good()}: put the file back first."
                raise FileError(
                    f"{path} was deleted while the training ran: the training stopped. {way_on}"
                )

    def _way_on(self) -> str:
        """A sentence on what is safe and how to go on, for an error message."""
        then = "goes on from there" if self._has_checkpoint() else "starts over"
        return f"{self.last_good()}: running again {then}."

    def _has_checkpoint(self) -> bool:
        """Whether this training saved or restored a checkpoint that nobody has deleted since."""
        saved = self._saved_iteration is not None
        return saved and self._folder is not None and files.exists(self._folder / CHECKPOINT)


def _file_at(path: Path) -> tuple[int, int, int] | None:
    """Which file is there and how long it is; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size
