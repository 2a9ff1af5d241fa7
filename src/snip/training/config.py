"""How a network is trained: one frozen value, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from snip.common.checks import LARGEST, check_fields, checked_number, checked_whole
from snip.common.errors import InputError, KindError, nearest

# What each optimiser is given by default. SGD's are the paper's; Adam's and AdamW's are PyTorch's,
# because rates that suit SGD make them diverge.
OPTIMIZERS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.1, "weight_decay": 5e-4},
    "adam": {"lr": 1e-3, "weight_decay": 0.0},
    "adamw": {"lr": 1e-3, "weight_decay": 1e-2},
}


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the outcome of a training; the defaults are the paper's for MNIST."""

    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9  # for SGD only; Adam and AdamW use their default betas
    weight_decay: float = 5e-4
    batch_size: int = 100
    iterations: int = 75_000
    lr_drops: tuple[int, ...] = (25_000, 50_000)  # at each, lr is multiplied by lr_factor
    lr_factor: float = 0.1  # as in the paper's text; the authors' code has 0.2
    weight_decay_factor: float = 1.0  # what each of the drops multiplies weight_decay by
    validation: float = 0.1  # fraction of the training set held out; 0 selects the last model
    eval_every: int = 0  # iterations between two evaluations; 0 is once per epoch
    augment: bool = True  # has an effect only where the data set has an augmentation
    seed: int = 0  # order of the data, augmentation, dropout

    def __post_init__(self) -> None:
        """Refuse values that could only fail later."""
        if self.optimizer not in OPTIMIZERS:
            raise nearest("optimizer", self.optimizer, OPTIMIZERS)
        object.__setattr__(self, "lr_drops", _drops(self.lr_drops))
        self._check_number("lr", above=0)
        self._check_number("momentum", least=0, below=1)
        self._check_number("weight_decay", least=0)
        self._check_number("lr_factor", above=0)
        self._check_number("weight_decay_factor", least=0)
        self._check_number("validation", least=0, below=1)
        checked_whole("batch_size", self.batch_size, least=1)
        checked_whole("iterations", self.iterations, least=1)
        checked_whole("eval_every", self.eval_every, least=0)
        checked_whole("seed", self.seed, least=0)
        self._check_last("lr", self.lr_factor)
        self._check_last("weight_decay", self.weight_decay_factor)
        if not isinstance(self.augment, bool):
            raise KindError(f"augment is {self.augment!r}: give True or False.")

    def _check_number(self, name: str, **limits: float) -> None:
        # Stored as float, so that lr=1 and lr=1.0 are the same configuration.
        object.__setattr__(self, name, checked_number(name, getattr(self, name), **limits))

    def _check_last(self, name: str, factor: float) -> None:
        """Refuse a factor that would make too large a number of it, drop after drop."""
        if factor <= 1:
            return
        try:
            last = getattr(self, name) * factor ** len(self.lr_drops)
        except OverflowError:
            last = math.inf
        if not last <= LARGEST:
            raise InputError(
                f"{name} is {getattr(self, name):g} and is multiplied by {factor:g} at "
                f"{len(self.lr_drops)} drops, which is too large a number: choose a smaller factor."
            )

    def with_optimizer(self, name: str) -> TrainConfig:
        """The same training by another optimiser, with the rate and decay that suit it."""
        if name not in OPTIMIZERS:
            raise nearest("optimizer", name, OPTIMIZERS)
        return dataclasses.replace(self, optimizer=name, **OPTIMIZERS[name])  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON writes them."""
        return {**dataclasses.asdict(self), "lr_drops": list(self.lr_drops)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; a field that is missing has its default."""
        check_fields(cls, data, "training option")
        return cls(**data)


def _drops(value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise KindError(f"lr_drops is {value!r}: give the iterations, such as (25000, 50000).")
    drops = tuple(checked_whole("a value in lr_drops", drop, least=1) for drop in value)
    if list(drops) != sorted(set(drops)):
        raise InputError(f"lr_drops is {drops}: give each iteration once, in rising order.")
    return drops
