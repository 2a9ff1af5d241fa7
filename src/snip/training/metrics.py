"""What is measured while training: one line per evaluation, and which line is the result."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from snip.common.checks import check_kinds
from snip.common.errors import InputError
from snip.common.files import read_bytes, reading

LARGEST = 1 << 26  # bytes of a metrics.jsonl: those of a hundred thousand evaluations
LONGEST = 1 << 12  # characters of one line


@dataclass(frozen=True)
class Metrics:
    """One evaluation; errors are fractions, train_* are means over the steps since the last."""

    iteration: int  # steps done
    epoch: float
    lr: float  # of the last step
    train_loss: float
    train_error: float
    valid_loss: float | None  # None without a validation set
    valid_error: float | None
    test_loss: float
    test_error: float
    sparsity: float  # fraction of the prunable weights that is pruned and zero
    seconds: float  # since the start, evaluations included, over all resumed parts
    images_per_second: float  # while training
    cpu_seconds: float | None = None  # as `seconds`, of all threads; None in older files

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Metrics:
        """The inverse of `to_dict`; values of the wrong kind are refused."""
        metrics = cls(**data)
        check_kinds(metrics, "an evaluation")
        if (metrics.valid_error is None) != (metrics.valid_loss is None):
            raise InputError("an evaluation has a validation loss or error without the other.")
        return metrics

    def to_line(self) -> str:
        """One line of metrics.jsonl."""
        return json.dumps(self.to_dict(), allow_nan=False)


@dataclass
class Running:
    """Sums over the training steps since the last evaluation."""

    loss: float = 0.0
    wrong: int = 0
    images: int = 0
    seconds: float = 0.0

    def add(self, loss: float, wrong: int, images: int, seconds: float) -> None:
        """Count one step, whose loss is a mean over its images."""
        self.loss += loss * images
        self.wrong += wrong
        self.images += images
        self.seconds += seconds

    def check(self) -> None:
        """Refuse sums that no steps can have."""
        if min(self.wrong, self.images, self.seconds) < 0:
            raise InputError("a training's sums are negative.")

    @property
    def mean_loss(self) -> float:
        """Mean loss of an image."""
        return self.loss / max(self.images, 1)

    @property
    def error(self) -> float:
        """Fraction of the images that were classified wrongly."""
        return self.wrong / max(self.images, 1)


def read_metrics(path: Path) -> list[Metrics]:
    """The lines of a metrics.jsonl; a last line that is still being written is left out."""
    with reading(path, fix="delete its folder and run again"):
        # By "\n" alone: splitlines() also cuts at characters that may stand inside a string.
        lines = read_bytes(path, most=LARGEST).decode().split("\n")
        if max(map(len, lines)) > LONGEST:
            raise ValueError(f"a line has more than {LONGEST:,} characters")
        return [Metrics.from_dict(json.loads(line)) for line in lines[:-1]]


def selected(history: Sequence[Metrics]) -> Metrics:
    """The line of lowest validation error; ties go to the lower loss, then to the earlier line.

    Without a validation part it is the last line.
    """
    if history[-1].valid_error is None:
        return history[-1]
    return min(history, key=lambda line: (line.valid_error, line.valid_loss))


def best_test_error(history: Sequence[Metrics]) -> float:
    """The lowest test error of all lines. The authors report this, which selects on test data."""
    return min(line.test_error for line in history)


def measured_sparsity(model: nn.Module, masks: Mapping[str, torch.Tensor] | None) -> float:
    """Fraction of the masked parameters that is pruned and indeed zero; 0 without masks."""
    if not masks:
        return 0.0
    parameters = model.state_dict()  # only here does an accelerated network have plain names
    pruned = total = 0
    for name, mask in masks.items():
        weights = parameters[name]
        pruned += int((~mask.to(weights.device) & (weights == 0)).sum())
        total += mask.numel()
    return pruned / total
