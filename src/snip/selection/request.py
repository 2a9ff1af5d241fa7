"""A pruning request as one checked value, which needs no model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from snip.common.errors import InputError, KindError, nearest
from snip.network.network import BIASES, COMPETE
from snip.selection.budgets import Scope, check_scope, checked_sparsity
from snip.selection.granularity import Element, Granularity, checked_granularity

AUTO = "auto"  # a floor only where no path would be left without one
CONNECTIONS, FLOPS = BUDGETS = ("connections", "flops")


@dataclass(frozen=True)
class Request:
    """Sparsity, budget, scope and granularity of a selection. A wrong value is refused."""

    sparsity: float
    scope: Scope = "global"
    floor: float | str = 0.0  # what each layer keeps at least: a count, a fraction, or AUTO
    granularity: Granularity = Element()
    budget: str = CONNECTIONS
    biases: str = COMPETE

    @classmethod
    def of(
        cls, *, sparsity: float | None, granularity: str | Granularity = "element", **options: Any
    ) -> Request:
        """The request as a user writes it: names for values, a sparsity where it is needed."""
        whole = checked_granularity(granularity)
        if sparsity is None:
            if whole.sparsity is None:
                raise KindError("sparsity is missing: give a number such as 0.95.")
            sparsity = whole.sparsity
        return cls(sparsity=sparsity, granularity=whole, **options)

    def __post_init__(self) -> None:
        if self.budget not in BUDGETS:
            raise nearest("budget", self.budget, BUDGETS)
        if self.biases not in BIASES:
            raise nearest("biases", self.biases, BIASES)
        object.__setattr__(self, "sparsity", checked_sparsity(self.sparsity))
        check_scope(self.scope)
        self._check_floor()
        if self.by_cost and (self.scope != "global" or self.least):
            raise InputError("a cost budget ranks all connections together: no scope, no floor.")
        if self.least and self.scope != "global":
            raise InputError(
                f"floor goes with scope='global', not {self.scope!r}: the others give shares."
            )
        self._check_granularity()

    @property
    def least(self) -> float:
        """The floor as a number: 0 for AUTO."""
        return 0.0 if isinstance(self.floor, str) else float(self.floor)

    @property
    def by_cost(self) -> bool:
        """True if the budget is a cost instead of a count of connections."""
        return self.budget != CONNECTIONS

    @property
    def plain_scope(self) -> str | dict[str, float]:
        """The scope as JSON writes it."""
        if isinstance(self.scope, str):
            return self.scope
        return {name: float(sparsity) for name, sparsity in self.scope.items()}

    @property
    def may_be_repaired(self) -> bool:
        """True if nothing was chosen that says what each layer keeps."""
        free = self.floor == AUTO and self.scope == "global"
        return free and not self.by_cost and self.granularity.accepts_scope

    def _check_floor(self) -> None:
        floor: object = self.floor
        if floor == AUTO:
            return
        number = isinstance(floor, Real) and not isinstance(floor, bool)
        if not number or not 0 <= self.least < math.inf:
            raise InputError(f"floor is {floor!r}: give a count such as 10, or a fraction below 1.")
        if self.least > 1 and self.least != int(self.least):
            raise InputError(
                f"floor is {floor:g}: from 1 on it is a count, which must be whole; a fraction of "
                f"each layer is below 1, such as {self.least / 100:g} for {floor:g}%."
            )

    def _check_granularity(self) -> None:
        own = self.granularity.sparsity
        if own is not None and abs(self.sparsity - own) > 1e-6:
            raise InputError(
                f"granularity '{self.granularity}' removes {own:g} of a weight, and sparsity is "
                f"{self.sparsity:g}: leave it out or write {own:g}."
            )
        if not self.granularity.accepts_scope and (self.scope != "global" or self.least):
            raise InputError(
                f"granularity '{self.granularity}' decides itself what each layer keeps: no scope, "
                "no floor and no method with shares of its own such as 'erk'."
            )
        if own is not None and self.by_cost:
            raise InputError(
                f"granularity '{self.granularity}' keeps the same of every weight: no cost budget."
            )


def scope_facts(scope: Scope) -> dict[str, Any]:
    """A scope as plain values that ranks can send and compare."""
    if isinstance(scope, Mapping):
        return {f"scope of {name!r}": float(share) for name, share in scope.items()}
    return {"scope": scope}
