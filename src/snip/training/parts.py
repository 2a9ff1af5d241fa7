"""What a training is made of: its batches, its optimiser, its random state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, KindError
from snip.data.batches import Batches
from snip.data.dataset import Dataset
from snip.network.untouched import draws
from snip.training.config import TrainConfig

EVALUATION_BATCH = 250  # images; decides speed and memory, and the last bits of a loss


class Loader:
    """Batches of the user's own, such as a DataLoader, in the place of `Batches`."""

    def __init__(self, batches: Iterable[Any]) -> None:
        kind = type(batches).__name__
        if isinstance(batches, torch.utils.data.Dataset):
            raise KindError(
                f"the data is a {kind} of single samples: give its batches, such as "
                "DataLoader(data, batch_size=100, shuffle=True)."
            )
        if isinstance(batches, Iterator) or not isinstance(batches, Sized):
            raise KindError(
                f"the data is a {kind}, which cannot be read again and again: a "
                "method that trains needs a snip data set, a DataLoader or a list of batches."
            )
        self.batches, self._length = batches, _length(batches)
        # Looked at once and kept: a DataLoader starts its workers for every look.
        self.first = _first(batches)
        self.images = self._length * len(self.first[1])  # in an epoch, if all batches are as large

    def __len__(self) -> int:
        """Batches per epoch."""
        return self._length

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self.epoch(0)

    def epoch(self, _number: int, *, start: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One pass, from batch `start` on."""
        empty = True
        for batch in islice(iter(self.batches), start, None):
            empty = False
            yield batch
        if empty:  # else training would ask for one pass after another for ever
            raise KindError(
                f"the data is a {type(self.batches).__name__} that has no batches left when it is "
                "read again: a method that trains needs a DataLoader or a list of batches."
            )

    def with_seed(self, _seed: int) -> Loader:
        """Itself: the user decides the order."""
        return self


def _length(batches: Sized) -> int:
    """Batches per epoch, for data that knows it."""
    try:
        length = len(batches)
    except TypeError as error:  # a DataLoader has a length only if its data set has
        raise KindError(
            f"the data is a {type(batches).__name__} of unknown length ({error}): a method that "
            "trains counts in epochs. Give its data set a __len__, or give a list of batches."
        ) from error
    if length < 1:
        raise InputError(f"the data is a {type(batches).__name__} without batches: give some.")
    return length


def _first(batches: Iterable[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The first batch, if it is one to train on."""
    first: Any = next(iter(batches), ())
    pair = isinstance(first, (tuple, list)) and len(first) == 2
    if not pair or not all(isinstance(part, torch.Tensor) for part in first):
        raise KindError(
            "the data holds no (inputs, labels) pairs of tensors: a method that trains does so "
            "by cross-entropy, on such batches alone."
        )
    inputs, labels = first
    if labels.ndim == 0 or inputs.shape[:1] != labels.shape[:1] or not len(labels):
        raise InputError(
            f"the first batch has inputs {tuple(inputs.shape)} and labels "
            f"{tuple(labels.shape)}: give one label for each input."
        )
    return inputs, labels


@dataclass(frozen=True)
class Data:
    """The three parts of a data set as batches, and what tells it from other data."""

    train: Batches | Loader
    valid: Batches | None  # None if the validation's fraction is 0
    test: Batches | Loader
    identity: dict[str, Any]

    def first(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The first batch to train on, as a copy where a forward could write into the user's."""
        if isinstance(self.train, Batches):
            return next(iter(self.train))
        inputs, labels = self.train.first
        return inputs.clone(), labels

    def with_seed(self, seed: int) -> Data:
        """The same data, with the training images in another order."""
        return dataclasses.replace(self, train=self.train.with_seed(seed))


def data_for(dataset: Dataset, config: TrainConfig) -> Data:
    """Cut a data set as `config` says; the validation part is the same for every seed."""
    train, valid = dataset.split_validation(config.validation)
    source = dataset if config.augment else dataclasses.replace(dataset, augment=None)
    if len(train) < config.batch_size:
        raise InputError(
            f"batch_size is {config.batch_size}, but {dataset.name} has only {len(train)} "
            "training images: ask for fewer."
        )
    return Data(
        source.training_batches(config.batch_size, split=train, seed=config.seed, drop_last=True),
        dataset.evaluation_batches(EVALUATION_BATCH, split=valid) if len(valid) else None,
        dataset.evaluation_batches(EVALUATION_BATCH),
        dataset.identity(),
    )


def data_of(batches: Iterable[Any]) -> Data:
    """Batches of the user's own as data to train on.

    There is nothing to test on, so that the first batch stands in, and no error is reported.
    """
    loader = Loader(batches)
    return Data(loader, None, Loader([loader.first]), {"dataset": type(batches).__name__})


def stream(
    batches: Batches | Loader, start: int, stop: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of steps `start` to `stop`, epoch after epoch."""
    first, skipped = divmod(start, len(batches))
    epochs = (batches.epoch(k, start=skipped if k == first else 0) for k in count(first))
    return islice(chain.from_iterable(epochs), stop - start)


def make_optimizer(
    model: nn.Module, config: TrainConfig, groups: Sequence[dict[str, Any]] = ()
) -> torch.optim.Optimizer:
    """Over the parameters that need gradients, and `groups` of others, which do not decay.

    Held masks keep pruned weights zero.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise InputError("the model has no parameter to train: set requires_grad on some.")
    parameters: Any = trained
    if groups:
        parameters = [{"params": trained}, *({**group, "weight_decay": 0.0} for group in groups)]
    if config.optimizer != "sgd":
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(parameters, lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(
        parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group the rate `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def set_weight_decay(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Give the model's parameters this decay. They are the first group: no other group decays."""
    optimizer.param_groups[0]["weight_decay"] = decay


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch (dropout draws from it), and give the caller's random state back at the end."""
    if not draws(device):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # and not those of GPUs, which may be in use
            yield
        return
    with torch.random.fork_rng(devices=[device], device_type=device.type):
        torch.manual_seed(seed)
        yield
