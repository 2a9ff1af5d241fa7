"""Connections that must stay whatever their score: those that weight and spectral norm need.

These norms divide a weight by the length of what is stored of it. If all of that were zero, they
would divide zero by zero, so that one connection stays in each part that is divided: in each row
under weight norm, in the whole weight under spectral norm.

Elsewhere their scores mean what they mean in any layer. The score |v dL/dv| of a stored tensor v
is |dL/dc| at c = 1 (Eq. 4) of the network as it will be computed, with c v in place of v. Under a
norm it includes that the rest of the row grows when a connection goes, because the row keeps its
length: a connection whose removal the others make up for scores low, as it should.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from snip.distributed.wrappers import unwrap
from snip.network.norms import normed_weights


def with_survivors(
    model: nn.Module,
    scores: Mapping[str, torch.Tensor],
    *,
    within: Mapping[str, torch.Tensor] | None = None,
    costs: Mapping[str, float] | None = None,
    group_size: int = 1,
) -> dict[str, torch.Tensor]:
    """The scores, with the best of each part that a norm divides raised above all others.

    `within` and `costs` are those of `select`, so that what is raised can win and does, even where
    groups of `group_size` connections are ranked by their mean.
    """
    normed = {n: weight for n, weight in normed_weights(unwrap(model)).items() if n in scores}
    raised = dict(scores)
    if not normed:
        return raised
    prices = list((costs or {"each": 1.0}).values())
    # Scores may have a sign, and a price multiplies a score below zero.
    largest = max(float(score.abs().max()) for score in scores.values() if score.numel())
    top = 2 * largest * group_size * max(prices) / min(prices)
    for name, weight in normed.items():
        score = scores[name].clone()
        inside = (within or {}).get(name)
        allowed = score if inside is None else score.where(inside.to(score.device), -torch.inf)
        places = weight.parts(allowed).argmax(1, keepdim=True)
        # What `parts` gives may be a copy, so that the places are marked in a tensor of their own.
        index = weight.parts(torch.arange(score.numel(), device=score.device).view(score.shape))
        score.view(-1)[index.gather(1, places)] = min(top, torch.finfo(score.dtype).max)
        raised[name] = score
    return raised
