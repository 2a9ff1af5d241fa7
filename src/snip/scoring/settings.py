"""Settings of scoring as one value: several batches, mode of batch norm, kind of loss."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from snip.common.checks import checked_whole
from snip.common.errors import InputError, KindError, nearest
from snip.network.untouched import BATCH_NORM_MODES

# |sum of g| and sum of |g| are different things: the first asks what the whole data says of a
# connection, the second lets batches that disagree both count. With one batch all three agree.
REDUCTIONS = ("abs_of_sum", "sum_of_abs", "ema")
LOSS_REDUCTIONS = ("mean", "sum")
ZERO_PARTS = ("woken", "as-is")


@dataclass(frozen=True, repr=False)
class Scoring:
    """Settings of scoring; a wrong value is refused when they are made.

    `reduction` says how the gradients of several batches become one, and `decay` is the weight of
    the past in its "ema". `batch_norm` is the mode of batch norms while scoring. `loss_reduction`
    says whether the loss is a mean over its batch (then batches are weighted by their size, so
    that "abs_of_sum" does not depend on how the data is cut) or a sum. The size of a batch is that
    of dimension `batch_dim` of its first tensor (1 for time-first sequences). `zero_parts` says
    what `prune` does with parts that start at zero and hide what lies behind them (a head, the
    last norm of a residual block, LayerScale): "woken" scores weights as if they were drawn and
    scales as if they were one, "as-is" leaves them. `Scoring.authors()` is the authors' way.
    """

    reduction: str = "abs_of_sum"
    decay: float = 0.9
    # The authors' code scores with batch norms in inference mode, whose statistics are 0 and 1
    # before training: the signal shrinks or grows from layer to layer, and with it the scores. By
    # the batch's own statistics more layers and paths survive: see bench/defaults.py.
    batch_norm: str = "train"
    loss_reduction: str = "mean"
    batch_dim: int = 0
    zero_parts: str = "woken"

    @classmethod
    def authors(cls, **settings: Any) -> Scoring:
        """The settings of the authors' code, for the paper's experiments."""
        return cls(**{"batch_norm": "eval", "zero_parts": "as-is", **settings})

    def __repr__(self) -> str:
        """As a user would write it: what differs from the defaults."""
        own = (f"{f.name}={v!r}" for f in fields(self) if (v := getattr(self, f.name)) != f.default)
        return f"Scoring({', '.join(own)})"

    def __post_init__(self) -> None:
        if self.reduction not in REDUCTIONS:
            raise nearest("reduction", self.reduction, REDUCTIONS)
        if self.batch_norm not in BATCH_NORM_MODES:
            raise nearest("batch_norm mode", self.batch_norm, BATCH_NORM_MODES)
        if self.loss_reduction not in LOSS_REDUCTIONS:
            raise nearest("loss_reduction", self.loss_reduction, LOSS_REDUCTIONS)
        if self.zero_parts not in ZERO_PARTS:
            raise nearest("zero_parts", self.zero_parts, ZERO_PARTS)
        if not isinstance(self.decay, Real) or not 0 <= self.decay < 1:
            raise InputError(
                f"decay is {self.decay!r}: the moving average needs a number in [0, 1)."
            )
        # A number of numpy's becomes Python's, which a mask file can hold.
        object.__setattr__(self, "decay", float(self.decay))
        checked_whole("batch_dim", self.batch_dim, least=0)


def checked_scoring(scoring: Any) -> Scoring:
    """`scoring` if it is a Scoring; otherwise the reason why not."""
    if not isinstance(scoring, Scoring):
        raise KindError(f"scoring is {scoring!r}: give a value such as snip.Scoring().")
    return scoring
