"""The arms of the budget experiment: both budgets at the same FLOPs, found before any training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from snip.data.dataset import Dataset
from snip.methods import named_method
from snip.network.reader import Reader
from snip.runs import RunConfig, scoring_batches
from snip.runs.exploring import network_to_score
from snip.selection.costs import element_flops, flops
from snip.selection.request import BUDGETS
from snip.selection.select import select
from snip.training.config import TrainConfig
from snip.training.parts import seeded
from snip.training.schedule import paper_schedule, shortened

# Each arm may use this share of the FLOPs that the parameter budget leaves.
SHARES = (1.0, 0.5, 0.25)
GRID = 100_000  # sparsities are whole multiples of 1 / GRID, so that a run finds its folder again


# How each network is pruned at share 1 and trained. Engines differ in the last bits of a sum, which
# a training turns into another error, as another seed would: all arms run on one, so that nothing
# but the budget tells them apart.
BASES = (
    # Ten epochs at a lower rate, because the dense network diverges at the paper's.
    RunConfig(
        "lenet-5-caffe",
        0.98,
        engine="sparse",
        train=shortened(replace(paper_schedule("mnist"), lr=0.03), 5400),
    ),
    # The paper's four drops would leave a fifth of so short a run at the first rate.
    RunConfig(
        "alexnet-s",
        0.9,
        engine="sparse",
        train=TrainConfig(batch_size=128, iterations=1000, lr_drops=(500, 750)),
    ),
)


@dataclass(frozen=True)
class Arm:
    """One budget at a share of the reference's FLOPs."""

    budget: str
    share: float

    @property
    def name(self) -> str:
        """The arm's name in the result file."""
        return f"{self.budget} {self.share:g}"


ARMS = tuple(Arm(budget, share) for share in SHARES for budget in BUDGETS)


class Scored:
    """The sensitivities of one seed's network, and what each connection costs."""

    def __init__(self, config: RunConfig, dataset: Dataset) -> None:
        model = network_to_score(config)
        with seeded(config.seed, torch.device("cpu")), Reader(model) as reader:
            self.scores = named_method(config.method)[1].score(
                model, scoring_batches(config, dataset), scoring=config.scoring
            )
        self.uses = reader.seen.uses
        costs = element_flops(self.scores, self.uses)
        self.dense = sum(score.numel() * costs[name] for name, score in self.scores.items())

    def flops_left(self, sparsity: float) -> float:
        """The fraction of the dense FLOPs that the parameter budget leaves."""
        masks: Mapping[str, torch.Tensor] = select(self.scores, sparsity=sparsity)
        return flops(masks, self.uses) / self.dense

    def sparsity_at(self, target: float) -> float:
        """The lowest sparsity of the parameter budget that leaves at most `target`."""
        low, high = 0, GRID - 1  # too many FLOPs at low, few enough at high
        while high - low > 1:
            middle = (low + high) // 2
            if self.flops_left(middle / GRID) > target:
                low = middle
            else:
                high = middle
        return high / GRID


def plan(config: RunConfig, dataset: Dataset) -> dict[Arm, RunConfig]:
    """The run of every arm for one seed; `config` is the parameter budget at share 1."""
    scored = Scored(config, dataset)
    reference = scored.flops_left(config.sparsity)
    runs = {}
    for arm in ARMS:
        target = reference * arm.share
        if arm.budget == "flops":
            # The fraction saved is rounded up: this arm never has more FLOPs than its rival.
            sparsity = math.ceil((1 - target) * GRID) / GRID
        else:
            sparsity = config.sparsity if arm.share == 1 else scored.sparsity_at(target)
        runs[arm] = replace(config, sparsity=sparsity, budget=arm.budget)
    return runs
