"""The paper's schedules, shortened ones, and the learning rate at an iteration."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right

from snip.common.errors import nearest
from snip.data import DATASETS
from snip.training.config import TrainConfig

# MNIST: batches of 100 and a drop every 25,000 steps. The paper gives no end; 75,000 converge.
_GREY = TrainConfig()
_COLOR = TrainConfig(batch_size=128, iterations=150_000, lr_drops=(30_000, 60_000, 90_000, 120_000))
# The appendix names no schedule for Tiny-ImageNet other than CIFAR's: colour images share one.
SCHEDULES = {
    name: _GREY if spec.images.channels == 1 else _COLOR for name, spec in DATASETS.items()
}


# Of methods that prune a trained network. At the paper's rate the dense LeNet-5-Caffe diverges, and
# a longer training gains nothing.
_GREY_FIRST = TrainConfig(lr=0.02, iterations=27_000, lr_drops=(13_500, 20_250))


def first_training(dataset: str) -> TrainConfig:
    """How a network is trained before a method prunes it: the paper's, shorter for grey images."""
    schedule = paper_schedule(dataset)
    return _GREY_FIRST if schedule == _GREY else schedule


def paper_schedule(dataset: str) -> TrainConfig:
    """The schedule that the paper trains every network with on `dataset`."""
    if dataset not in SCHEDULES:
        raise nearest("data set", dataset, SCHEDULES)
    return SCHEDULES[dataset]


def shortened(config: TrainConfig, iterations: int) -> TrainConfig:
    """The same schedule squeezed into `iterations`: the drops keep their proportions."""
    checked = dataclasses.replace(config, iterations=iterations)
    scaled = {round(drop * iterations / config.iterations) for drop in config.lr_drops}
    return dataclasses.replace(checked, lr_drops=tuple(sorted(scaled - {0})))


def epoch_iterations(dataset: str, config: TrainConfig) -> int:
    """The steps of one epoch on the whole data set, known before any of it is read."""
    images = DATASETS[dataset].most
    held_out = round(images * config.validation)
    return max(1, (images - held_out) // config.batch_size)


def learning_rate(config: TrainConfig, iteration: int) -> float:
    """The rate of step number `iteration` (from 0); a drop at n leaves n steps at the old rate."""
    return config.lr * config.lr_factor ** drops_before(config, iteration)


def weight_decay(config: TrainConfig, iteration: int) -> float:
    """The decay of step number `iteration`, which changes where the rate drops."""
    return config.weight_decay * config.weight_decay_factor ** drops_before(config, iteration)


def drops_before(config: TrainConfig, iteration: int) -> int:
    """How many drops of the rate there were before step number `iteration`."""
    return bisect_right(config.lr_drops, iteration)
