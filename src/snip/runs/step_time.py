"""How long one dense training step of a network takes, found out within about a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from snip.common.timing import Work, best_time, best_times
from snip.engine.convert.timings import Timings
from snip.models import IMAGES, MODELS
from snip.models.resolve import resolve_model
from snip.runs.config import RunConfig
from snip.training import train_step
from snip.training.memory_format import channels_last
from snip.training.parts import make_optimizer, seeded

FEW = 2  # images that a large network is timed on
ENOUGH = 0.1  # seconds of a step: one on fewer images tells too little of the whole batch


def remembered_step_seconds(config: RunConfig) -> float:
    """`step_seconds`, which the cache folder remembers of networks that are named in the table."""
    if config.is_user_model:  # whose function may be another one by tomorrow
        return step_seconds(config)
    train = config.training
    about = f"{config.model}, {config.dataset}, {train.batch_size} images, {train.optimizer}"
    timings = Timings()
    what = f"training step by two counts: {about}, {torch.get_num_threads()} threads"
    found = timings.get(what, lambda: config, step_seconds)
    timings.save()
    return found


def step_seconds(config: RunConfig, device: str = "cpu") -> float:
    """Best time of a few dense training steps on random images.

    A large network takes half a minute for a whole batch: it is timed on a few images.
    """
    images, train = IMAGES[config.dataset], config.training
    shape = (train.batch_size, images.channels, images.size, images.size)
    with seeded(config.seed, torch.device(device)):
        model = _network(config).to(device).train()
        batch = torch.randn(shape, device=device)
        labels = torch.randint(images.classes, shape[:1], device=device)
        optimizer = make_optimizer(model, train)

        def step(count: int) -> None:
            train_step(model, optimizer, batch[:count], labels[:count])

        best = partial(_best, device=device)
        with channels_last(model):  # The training loop lays convolutions out like this too.
            return whole_batch(step, train.batch_size, best)


def whole_batch(
    step: Callable[[int], None], size: int, best: Callable[[Work, int], float]
) -> float:
    """Seconds of a step on `size` images, from as many as take long enough.

    What a step takes on few images is mostly its weights, which are read, given gradients and
    updated once, however many images there are: two numbers of images tell what each one adds.
    `best` times work in a number of rounds.
    """
    fewer, before, count = 0, 0.0, min(FEW, size)
    while count < size:
        seconds = best(partial(step, count), 1)
        if fewer and seconds >= ENOUGH:
            each = max(seconds - before, 0.0) / (count - fewer)
            return seconds + each * (size - count)
        fewer, before, count = count, seconds, min(4 * count, size)
    return best(partial(step, size), 3)


def _network(config: RunConfig) -> nn.Module:
    """The network with whatever weights its layers draw by themselves.

    The time does not depend on them, and the paper's rule takes a minute for the largest networks.
    """
    if config.is_user_model:
        return resolve_model(config.model, config.dataset, seed=config.seed)
    return MODELS[config.model].builder(IMAGES[config.dataset])


def _best(work: Work, rounds: int, *, device: str) -> float:
    """Seconds of the best turn. One thread's time is its own, whoever else is at work."""
    alone = device == "cpu" and torch.get_num_threads() == 1
    if alone:
        return best_times({"": work}, rounds=rounds, clock=time.thread_time)[""]
    return best_time(work, rounds=rounds)
