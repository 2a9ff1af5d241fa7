"""Keep groups of connections whole: the best of them, as many as a budget pays for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping

import torch

from snip.selection.digits import Cost
from snip.selection.topk import keep_top

Tensors = Mapping[str, torch.Tensor]


def best_groups(
    scores: Tensors,
    spent: Callable[[Tensors], Cost],
    budget: Cost,
    within: Tensors,
    *,
    reach: bool = False,
) -> dict[str, torch.Tensor]:
    """True for the groups that are kept: the best so many, the first position among equals.

    `scores` has one entry per group and `within` tells which groups compete; `spent` says what
    some groups cost together, which must not fall when another group comes to them. As many are
    kept as cost no more than the budget. None is skipped for a cheaper one that scores less. With
    `reach`, one group more is kept if the budget is not used up.
    """
    competing = sum(int(mask.count_nonzero()) for mask in within.values())

    def cost_of(count: int) -> Cost:
        return spent(keep_top(scores, count, within))

    count = bisect_right(range(competing + 1), budget, key=cost_of) - 1
    if reach and count < competing and cost_of(count) < budget:
        count += 1
    return keep_top(scores, count, within)


def per_cost(score: torch.Tensor, cost: Cost) -> torch.Tensor:
    """Scores by which connections of one cost compete with those of another.

    A score below zero speaks for removal, the more so the more the connection costs.
    """
    return torch.where(score < 0, score * float(cost), score / float(cost))
