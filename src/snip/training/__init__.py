"""Training: the paper's schedules, one loop, metrics, checkpoints that resume to the same bits."""

from snip.engine.fused.step import Step, train_step, training_step
from snip.training.checkpoint import load_checkpoint
from snip.training.config import OPTIMIZERS, TrainConfig
from snip.training.divergence import DivergenceError
from snip.training.evaluate import Evaluation, evaluate
from snip.training.metrics import Metrics
from snip.training.parts import data_for
from snip.training.schedule import (
    SCHEDULES,
    epoch_iterations,
    learning_rate,
    paper_schedule,
    shortened,
)
from snip.training.trainer import TrainResult, train

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "DivergenceError",
    "Evaluation",
    "Metrics",
    "Step",
    "TrainConfig",
    "TrainResult",
    "data_for",
    "epoch_iterations",
    "evaluate",
    "learning_rate",
    "load_checkpoint",
    "paper_schedule",
    "shortened",
    "train",
    "train_step",
    "training_step",
]
