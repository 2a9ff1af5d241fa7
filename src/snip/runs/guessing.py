"""Whether a result is no better than guessing, and what to look at then."""

from __future__ import annotations

import math
import shlex

import torch

from snip.common.files import exists
from snip.common.text import listed, percent
from snip.masks import Masks, empty_layers
from snip.methods import training_method
from snip.runs.config import TRUE
from snip.runs.result import RunResult
from snip.training.journal import MASKS

# Standard deviations by which a network that has learnt something is better than guessing.
NOISE = 3.0


def chance_error(labels: torch.Tensor) -> float:
    """The error of always answering the most frequent class."""
    return 1 - int(torch.bincount(labels).max()) / len(labels)


def is_chance(error: float, guessing: float, images: int) -> bool:
    """Whether an error on so many images is that of guessing, but for noise."""
    return error >= guessing - NOISE * math.sqrt(guessing * (1 - guessing) / images)


def chance_note(result: RunResult) -> str | None:
    """A sentence for a result at chance; None for one that is better, or of an older version."""
    path = result.folder / MASKS
    if not _at_chance(result):
        return None
    return chance_note_on(result, Masks.load(path) if exists(path) else None)


def chance_note_on(result: RunResult, masks: Masks | None) -> str | None:
    """The same where the masks are read already, or cannot be."""
    if not _at_chance(result):
        return None
    config, guessing = result.config, result.chance_error or 0.0
    empty = [] if masks is None else empty_layers(masks)
    floor = "" if training_method(config.method) else " (try --floor 10)"
    nothing_left = f"nothing is left of {listed(empty)}{floor}; " if empty else ""
    lr = config.training.lr
    pruned = (
        f", at the sparsity ({percent(result.sparsity)}), and at dead units and paths in "
        f"`{_inspection(result)}`"
    )
    return (
        f"the test error is that of guessing ({percent(guessing)} for the most frequent class), so "
        f"the network has learnt nothing: {nothing_left}look at the learning rate (--lr {lr:g}: "
        f"try {lr / 10:g}){pruned if config.sparsity else ''}."
    )


def _at_chance(result: RunResult) -> bool:
    """Whether a result is that of guessing; not if it does not say what guessing would be."""
    if result.config.labels != TRUE:  # there is nothing in them that could help on test images
        return False
    guessing, images = result.chance_error, result.test_images
    if guessing is None or images is None or images < 1 or not 0 <= guessing <= 1:
        return False
    return is_chance(result.test_error, guessing, images)


def _inspection(result: RunResult) -> str:
    """The command that shows what the masks left; a user's own network must be named for it."""
    named = ["--model", result.config.model] if result.config.is_user_model else []
    return shlex.join(["snip", "inspect", str(result.folder), *named])
