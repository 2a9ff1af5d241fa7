"""What a method during training is given: a trained network, and how many connections may stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import nn

from snip.distributed.wrappers import unwrap
from snip.masks import Masks, held_masks
from snip.methods.schedules import Rounds
from snip.network.calls import device_of
from snip.network.network import Network
from snip.selection.budgets import kept_count, left_in
from snip.selection.select import select, with_survivors
from snip.training.config import TrainConfig
from snip.training.phases import Phases

BY_ITSELF = "connections that the method kept"


def own_count(note: str | None) -> int | None:
    """What the note of `Course.trimmed` says that the method's own rule kept."""
    found = re.search(rf"([\d,]+) {BY_ITSELF}", note or "")
    return None if found is None else int(found[1].replace(",", ""))


@dataclass(eq=False)
class Course:
    """A trained network, its data and its schedule, and what a method does with them."""

    phases: Phases
    sparsity: float
    weights: dict[str, nn.Parameter]  # the connections that compete, by parameter name

    @property
    def model(self) -> nn.Module:
        """The network."""
        return unwrap(self.phases.model)

    @property
    def config(self) -> TrainConfig:
        """The training that the network had; phases are parts of it."""
        return self.phases.config

    @property
    def kept(self) -> int:
        """kappa: how many connections may stay."""
        return self._count(self.sparsity)

    @property
    def images(self) -> int:
        """N: images in an epoch of training."""
        return self.phases.data.train.images

    def batches(self, images: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The first batches of the training data, with at least so many images."""
        data, device = self.phases.data, device_of(self.model)
        first = data.first()
        count = -(-images // len(first[1]))
        found = [first] if count == 1 else list(islice(data.train.epoch(0), count))
        return [(inputs.to(device), labels.to(device)) for inputs, labels in found]

    def values(self) -> dict[str, torch.Tensor]:
        """The connections' weights now, without their gradients."""
        return {name: weight.detach() for name, weight in self.weights.items()}

    def keep(self, scores: Mapping[str, torch.Tensor], sparsity: float | None = None) -> Masks:
        """Masks that keep exactly as many of the highest scores, of what the model still has."""
        within = held_masks(self.model)
        scores = with_survivors(Network.of(self.model).normed, scores, within=within)
        asked = self.sparsity if sparsity is None else sparsity
        return select(scores, sparsity=asked, within=within)

    def trimmed(self, scores: Mapping[str, torch.Tensor], natural: int) -> Masks:
        """`keep`, with a note if the method's own rule would have kept another number."""
        masks = self.keep(scores)
        if natural == masks.kept:
            return masks
        word = "trimmed" if natural > masks.kept else "filled up"
        note = f"{word} from the {natural:,} {BY_ITSELF} to {masks.kept:,}"
        return masks.with_provenance(note=note)

    def in_rounds(
        self, prune_to: Callable[[float], Masks], rounds: Rounds, training: TrainConfig
    ) -> Masks:
        """Prune to each sparsity in turn, and train after each but the last.

        The training after the last is the one that follows every method.
        """
        *earlier, last = rounds(self.sparsity)
        within = held_masks(self.model)
        left = sum(left_in(name, weight, within) for name, weight in self.weights.items())
        for number, sparsity in enumerate(earlier, 1):
            if self._count(sparsity) > left:
                continue  # the network was pruned before, to less than this round would leave
            self.phases.train(f"round-{number}", training, start=partial(prune_to, sparsity))
        return prune_to(last)

    def _count(self, sparsity: float) -> int:
        """How many connections a sparsity keeps."""
        return kept_count(sum(w.numel() for w in self.weights.values()), sparsity)
