"""Granularity: what is kept or removed whole. Single connections, units, n of m inputs, blocks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import nn
from torch.nn.modules.conv import _ConvTransposeNd

from snip.anatomy.parameters import is_conv1d, is_weight, parameter_owners, unwrap
from snip.common.checks import checked_whole
from snip.common.errors import InputError, KindError, nearest
from snip.selection.budgets import Scope, checked_sparsity
from snip.units.coupled import CoupledUnits, coupled_units


class Granularity:
    """What is kept or removed whole."""

    takes_shares: ClassVar[bool] = True  # whether scope and floor may say what a layer keeps

    @property
    def together(self) -> int:
        """How many connections are ranked by their mean."""
        return 1

    @property
    def on_the_way(self) -> Granularity:
        """What the rounds before the last one keep or remove whole."""
        return self

    def on(self, model: nn.Module, inputs: Any) -> Granularity:
        """The same with what it must know of a model, which `inputs` is an example of a call of."""
        return self


@dataclass(frozen=True)
class Element(Granularity):
    """Single connections."""

    def __str__(self) -> str:
        return "element"


@dataclass(frozen=True)
class Channel(Granularity):
    """Whole units: the channels of a convolution, the neurons of a linear layer.

    With a unit go its weights, its bias, and what the next layers read of it, so that
    `snip.shrink` can take it out of the network. Units that are added go together. Units that an
    output reads stay, and so do those that are read by what `snip.shrink` cannot cut. Each layer
    keeps the same share of its units.
    """

    takes_shares: ClassVar[bool] = False
    units: CoupledUnits | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return "channel"

    def on(self, model: nn.Module, inputs: Any) -> Channel:
        """With the units of the model."""
        return Channel(coupled_units(model, inputs))


@dataclass(frozen=True)
class NofM(Granularity):
    """n of every m consecutive inputs of a unit, in a convolution at each position of its kernel.

    2 of 4 is what GPUs multiply by faster (`torch.sparse.to_sparse_semi_structured`). Biases stay,
    and so do weights whose number of inputs does not divide by m.
    """

    takes_shares: ClassVar[bool] = False
    n: int
    m: int
    turned: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_whole("n of a granularity n:m", self.n, least=1)
        checked_whole("m of a granularity n:m", self.m, least=2)
        if self.n >= self.m:
            raise InputError(f"granularity '{self}' removes nothing: n must be less than m.")

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"

    def on(self, model: nn.Module, inputs: Any) -> NofM:
        """With the weights of the model that are stored [inputs, outputs]."""
        return replace(self, turned=_turned(model))

    @property
    def on_the_way(self) -> Granularity:
        """Single connections: the pattern has one sparsity, and earlier rounds have lower ones."""
        return Element()

    @property
    def sparsity(self) -> float:
        """The fraction removed of a weight that follows the pattern."""
        return 1 - self.n / self.m


@dataclass(frozen=True)
class Block(Granularity):
    """Blocks of a weight as a matrix [outputs, inputs x positions]; a bias is one column.

    Where the matrix does not divide, the blocks at its border are smaller.
    """

    rows: int
    columns: int
    turned: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_whole("the rows of a block", self.rows, least=1)
        checked_whole("the columns of a block", self.columns, least=1)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    @property
    def together(self) -> int:
        """How many connections are ranked by their mean."""
        return self.rows * self.columns

    def on(self, model: nn.Module, inputs: Any) -> Block:
        """With the weights of the model that are stored [inputs, outputs]."""
        return replace(self, turned=_turned(model))


GRANULARITIES = ("element", "channel", "2:4", "4x4")
_NAMES: dict[str, Callable[[], Granularity]] = {"element": Element, "channel": Channel}
_PATTERNS: dict[str, Callable[[int, int], Granularity]] = {":": NofM, "x": Block}


def checked_granularity(given: str | Granularity) -> Granularity:
    """The value that a name such as "channel", "2:4" or "4x4" means; a value as it is."""
    if isinstance(given, Granularity):
        return given
    if not isinstance(given, str):
        raise KindError(f"granularity is {given!r}: give a name such as 'channel' or '4x4'.")
    text = given.strip().lower()
    if text in _NAMES:
        return _NAMES[text]()
    found = re.fullmatch(r"(\d{1,6})([:x])(\d{1,6})", text)
    if found is None:
        raise nearest("granularity", given, GRANULARITIES)
    return _PATTERNS[found[2]](int(found[1]), int(found[3]))


def asked_sparsity(granularity: Granularity, sparsity: float | None) -> float:
    """The sparsity that is asked for; of n:m it is the pattern's and may be left out."""
    given = granularity.sparsity if isinstance(granularity, NofM) else None
    if sparsity is None:
        if given is None:
            raise KindError("sparsity is missing: give a number such as 0.95.")
        return given
    sparsity = checked_sparsity(sparsity)
    if given is not None and abs(sparsity - given) > 1e-6:
        raise InputError(
            f"granularity '{granularity}' removes {given:g} of a weight, and sparsity is "
            f"{sparsity:g}: leave it out or write {given:g}."
        )
    return sparsity


def check_granularity(
    granularity: Granularity, scope: Scope, floor: float, *, by_cost: bool
) -> None:
    """Refuse what does not go together with a granularity."""
    if not granularity.takes_shares and (scope != "global" or floor):
        raise InputError(
            f"granularity '{granularity}' decides itself what each layer keeps: no scope, no "
            "floor and no method with shares of its own such as 'erk'."
        )
    if isinstance(granularity, NofM) and by_cost:
        raise InputError(
            f"granularity '{granularity}' keeps the same of every weight: no cost budget."
        )


def _turned(model: nn.Module) -> frozenset[str]:
    """Weights that are stored [inputs, outputs]: transposed convolutions, Hugging Face's Conv1D."""
    model = unwrap(model)
    return frozenset(
        name
        for name, owners in parameter_owners(model).items()
        if any(isinstance(layer, _ConvTransposeNd) or is_conv1d(layer) for _, layer in owners)
        and is_weight(model.get_parameter(name).shape)
    )
