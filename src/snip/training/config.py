"""How a network is trained: one frozen value, checked when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from snip.errors import InputError, KindError, nearest

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the outcome of a training; the defaults are the paper's for MNIST."""

    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9  # of SGD; Adam keeps its own betas
    weight_decay: float = 5e-4
    batch_size: int = 100
    iterations: int = 75_000
    lr_drops: tuple[int, ...] = (25_000, 50_000)  # from these iterations on, lr is x lr_factor
    lr_factor: float = 0.1
    validation: float = 0.1  # fraction of the training set held out; 0 selects the last model
    eval_every: int = 0  # iterations between two evaluations; 0 is once per epoch
    augment: bool = True  # where the data set has an augmentation
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
        self._check_number("validation", least=0, below=1)
        checked_whole("batch_size", self.batch_size, least=1)
        checked_whole("iterations", self.iterations, least=1)
        checked_whole("eval_every", self.eval_every, least=0)
        checked_whole("seed", self.seed, least=0)
        if not isinstance(self.augment, bool):
            raise KindError(f"augment is {self.augment!r}: give True or False.")

    def _check_number(self, name: str, **limits: float) -> None:
        # As float, so that lr=1 and lr=1.0 are one configuration.
        object.__setattr__(self, name, checked_number(name, getattr(self, name), **limits))

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON writes them."""
        return {**dataclasses.asdict(self), "lr_drops": list(self.lr_drops)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; a field that is missing has its default."""
        check_fields(cls, data, "training option")
        return cls(**data)


def check_fields(cls: type, data: Mapping[str, Any], kind: str) -> None:
    """Refuse names that are no fields of the dataclass `cls`."""
    known = {field.name for field in dataclasses.fields(cls)}
    for name in data:
        if name not in known:
            raise nearest(kind, name, known)


def differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Where two configurations differ, the first four in words; empty if they do not."""
    changed = [
        f"{key} {theirs.get(key, 'default')!r} there, {ours.get(key, 'default')!r} here"
        for key in sorted({*theirs, *ours})
        if theirs.get(key) != ours.get(key)
    ]
    return "; ".join(changed[:4])


def checked_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float = 0.0,
    below: float = math.inf,
) -> float:
    """`value` as a float if it lies within the limits; otherwise the reason why not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise KindError(f"{name} is {value!r}, a {type(value).__name__}: give a number.")
    low = f"at least {least:g}" if above is None else f"above {above:g}"
    inside = value >= least if above is None else value > above
    if not (inside and value < below):  # also refuses NaN
        high = "finite" if math.isinf(below) else f"below {below:g}"
        raise InputError(f"{name} is {value!r}: it must be {low} and {high}.")
    return float(value)


def checked_whole(name: str, value: Any, *, least: int) -> int:
    """`value` if it is a whole number of at least `least`; otherwise the reason why not."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise KindError(f"{name} is {value!r}, a {type(value).__name__}: give a whole number.")
    if value < least:
        raise InputError(f"{name} is {value}: it must be at least {least}.")
    return value


def _drops(value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise KindError(f"lr_drops is {value!r}: give the iterations, such as (25000, 50000).")
    drops = tuple(checked_whole("a value in lr_drops", drop, least=1) for drop in value)
    if list(drops) != sorted(set(drops)):
        raise InputError(f"lr_drops is {drops}: give each iteration once, in rising order.")
    return drops
