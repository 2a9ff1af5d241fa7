"""Methods: how connections are ranked. To add one, write a file here and a row in METHODS."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn

from snip.anatomy.parameters import Predicate
from snip.methods.snip import connection_sensitivity
from snip.methods.weight_gradient import weight_gradient
from snip.scoring.batches import LossFn
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
