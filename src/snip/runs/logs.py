"""The loggers that a run may be followed by, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from snip.common.errors import nearest
from snip.runs.config import RunConfig
from snip.training.loggers import Logger
from snip.training.mlflow import MLflow
from snip.training.tensorboard import TensorBoard
from snip.training.wandb import WandB

# Each is made from the run's folder and its configuration as JSON writes it, before the run starts:
# that is where a missing library is told.
LOGGERS: dict[str, Callable[[Path, Mapping[str, Any]], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}


def require_loggers(names: Iterable[str]) -> None:
    """Refuse names that are not known, and those whose library is not installed."""
    for name in names:
        _logger(name, Path(), {})  # nothing is written before it begins


def loggers_of(names: Iterable[str], place: Path, config: RunConfig) -> tuple[Logger, ...]:
    """The loggers of these names for a run; a name that is not known is refused."""
    return tuple(_logger(name, place, config.to_dict()) for name in dict.fromkeys(names))


def _logger(name: str, place: Path, config: Mapping[str, Any]) -> Logger:
    if name not in LOGGERS:
        raise nearest("logger", name, LOGGERS)
    return LOGGERS[name](place, config)
