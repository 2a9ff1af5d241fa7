"""Methods: how connections are ranked. To add one, write a file here and a row in METHODS."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from snip.anatomy.parameters import Predicate
from snip.common.errors import KindError, nearest
from snip.methods.snip import connection_sensitivity
from snip.methods.weight_gradient import weight_gradient
from snip.scoring.batches import LossFn, name_of
from snip.scoring.gradients import Scores
from snip.scoring.settings import Scoring


class Method(Protocol):
    """A method at initialisation: one score per connection by parameter name, higher = keep.

    The model is left as found. `params` picks the parameters that count, as in `snip.prune`.
    """

    def __call__(
        self,
        model: nn.Module,
        batches: Any,
        loss_fn: LossFn | None = None,
        *,
        params: Predicate | None = None,
        scoring: Scoring = Scoring(),
    ) -> Scores: ...


METHODS: dict[str, Method] = {
    "snip": connection_sensitivity,
    "weight-gradient": weight_gradient,
}


def named_method(method: str | Method) -> tuple[str, Method]:
    """A method of the table by its name, or a user's own function as it is; with its name."""
    if isinstance(method, str):
        if method not in METHODS:
            raise nearest("method", method, METHODS)
        return method, METHODS[method]
    if not callable(method):
        raise KindError(f"method is {method!r}: give a name such as 'snip', or a function.")
    return name_of(method), method
