"""The name of a run's folder: readable, and another one for every configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

from snip.training.config import TrainConfig

if TYPE_CHECKING:
    from snip.runs.config import RunConfig

# Fields that decide only the masks: they make no difference to a dense run, which has none.
SCORING = (
    "method", "initializer", "score_batch_size", "score_batches", "reduction", "decay",
    "granularity", "scope", "floor", "budget", "biases", "batch_norm", "control",
)  # fmt: skip
# Fields that a name shows where they are not as usual.
SHOWN = ("granularity", "protocol", "control")


def folder_name(config: RunConfig) -> str:
    """A name that says the most important, and ends in a digest of everything."""
    digest = hashlib.sha256(json.dumps(identity(config), sort_keys=True).encode()).hexdigest()
    return f"{look(config)}_seed{config.seed}_{digest[:8]}"


def look(config: RunConfig) -> str:
    """The part of the name that is for people; settings that it does not show may differ."""
    about = identity(config)
    pruned = f"{config.method}-{config.sparsity:g}" if config.sparsity else "dense"
    parts = [config.model, config.dataset, pruned]
    parts += [about[name] for name in SHOWN if name in about]
    parts += [f"{about['labels']}-labels"] if "labels" in about else []
    parts += [f"{config.training.iterations}it"]
    return "_".join(re.sub(r"[^A-Za-z0-9.-]+", "-", part) for part in parts)


def identity(config: RunConfig) -> dict[str, Any]:
    """What tells this run from others: the fields that are not at their default."""
    # Without the defaults: a field that is added later must not rename the folders of old runs.
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    # These had other defaults when folders got names, which stay as they were.
    defaults |= {"engine": "dense", "batch_norm": "eval", "floor": 0.0}
    train_defaults = TrainConfig().to_dict()
    ours = config.to_dict()
    train = ours.pop("train")
    skipped = SCORING if config.sparsity == 0 else ()
    return {
        **{k: v for k, v in ours.items() if v != defaults[k] and k not in skipped},
        **{f"train.{k}": v for k, v in train.items() if v != train_defaults[k]},
    }
