"""Second moments of pruned weights, kept off exact zero, whose root torch is slow to take.

Adam and its kin divide by the root of a mean (in Adagrad a sum) of squared gradients. Of a pruned
weight that is 0.0, and the root of 0.0 is a special case for the library that torch takes roots
with on a CPU, 16 times as slow: a step of AdamW took half as long again with most weights
pruned as with none. A pruned weight gets a tiny one instead. It changes no step, because the
gradient that is divided by the root is zero.
"""

from __future__ import annotations

import torch
from torch import optim

from snip.distributed.shards import local

# What torch's own optimisers call what they take the root of. By exact type: another optimiser, and
# a subclass too, may mean something else by the same name.
ROOTED: dict[type[optim.Optimizer], tuple[str, ...]] = {
    optim.Adam: ("exp_avg_sq", "max_exp_avg_sq"),
    optim.AdamW: ("exp_avg_sq", "max_exp_avg_sq"),
    optim.NAdam: ("exp_avg_sq",),
    optim.RAdam: ("exp_avg_sq",),
    optim.RMSprop: ("square_avg",),
    optim.Adagrad: ("sum",),
}
# Its root, 1e-12, is a hundredth of the least eps that torch adds to it unless told otherwise
# (1e-10 in Adagrad, 1e-8 in the others): a weight that is released grows as from zero.
TINY = 1e-24
EVERY = 256  # steps; a mean that forgets a tenth in each is 2e-36 after so many, which is quick


def lift(optimizer: optim.Optimizer, parameter: torch.Tensor, mask: torch.Tensor) -> None:
    """Raise the means of what is pruned to TINY, in one step out of EVERY by the optimiser's count.

    `mask` is 0 or False where the parameter is pruned.
    """
    names = ROOTED.get(type(optimizer))
    state = optimizer.state.get(parameter) if names else None
    if not names or not state or int(state["step"]) % EVERY != 1:
        return
    for name in names:
        mean = state.get(name)
        if not isinstance(mean, torch.Tensor):
            continue
        mean = local(mean)
        if mean.is_floating_point() and _fits(mean, mask):
            least = (mask == 0).to(mean.dtype).mul_(TINY)
            torch.maximum(mean, least, out=mean)


def _fits(mean: torch.Tensor, mask: torch.Tensor) -> bool:
    return mean.shape == mask.shape and mean.device == mask.device and mean.device.type == "cpu"
