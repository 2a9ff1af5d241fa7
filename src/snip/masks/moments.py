"""Second moments of pruned weights, kept off exact zero, whose root torch is slow to take.

Adam and its kin divide by the root of a running mean of squared gradients. Of a pruned weight that
mean is 0.0, and the root of 0.0 is a special case for the library that torch takes roots with on a
CPU, a hundred times as slow: a step of AdamW took half as long again with most weights pruned as
with none. A pruned weight gets a tiny mean instead. It changes no step, because the gradient that
is divided by the root is zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from snip.distributed.shards import local

ROOTED = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")  # what optimisers call such means
TINY = 1e-20  # its root is below every usual eps: a weight that is released grows as from zero
EVERY = 256  # steps; a mean that forgets a tenth in each is 1e-32 after so many, which is quick


def lift(state: Mapping[str, Any], mask: torch.Tensor) -> None:
    """Raise the means of what is pruned to TINY, in one step out of EVERY by the optimiser's count.

    `state` is an optimiser's for one parameter; `mask` is 0 or False where it is pruned.
    """
    step = state.get("step")
    if step is None or int(step) % EVERY != 1:
        return
    for key in ROOTED:
        mean = state.get(key)
        if not isinstance(mean, torch.Tensor):
            continue
        mean = local(mean)
        if mean.is_floating_point() and _fits(mean, mask):
            least = (mask == 0).to(mean.dtype).mul_(TINY)
            torch.maximum(mean, least, out=mean)


def _fits(mean: torch.Tensor, mask: torch.Tensor) -> bool:
    return mean.shape == mask.shape and mean.device == mask.device and mean.device.type == "cpu"
