"""Who wins once the threshold is known: what is above it, and of what equals it the first.

All of it goes piece by piece, so that nothing but the masks is as long as the scores are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

import torch

from snip.distributed.ranks import ALONE, Ranks
from snip.selection.digits import Cost

PIECE = 1 << 20  # elements that a thread takes at a time: fewer cost more in handing out work
ALIKE = "Select by the same settings in every process."
Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Competition:
    """The scores that compete, where they may win, and what an element of each tensor costs.

    Each of `ranks` has the next part of every tensor.
    """

    scores: Mapping[str, torch.Tensor]
    within: Mapping[str, torch.Tensor]
    costs: Mapping[str, Cost]
    wide: torch.dtype
    ranks: Ranks = ALONE

    def above(self, threshold: torch.Tensor, kept: Cost) -> dict[str, torch.Tensor]:
        """The masks: what is above the threshold, and the first that equal it for what is left."""
        masks = {name: self._greater(name, threshold) for name in self.scores}
        counts = torch.tensor([int(mask.count_nonzero()) for mask in masks.values()])
        kept_of = dict(zip(masks, self.ranks.summed(counts).tolist(), strict=True))
        # Every process gets the masks that all of them put together, so that a later look at
        # them could not tell whether one process has decided by something else.
        self.ranks.agree({"threshold": float(threshold), "kept": kept}, ALIKE)
        left = kept - sum(count * self.costs[name] for name, count in kept_of.items())
        for name, mask in masks.items():
            if left < min(self.costs.values()):
                break
            filled = self._fill(name, mask, threshold, int(left // self.costs[name]))
            kept_of[name] += filled
            left -= self.costs[name] * filled
        self.ranks.agree({"kept of each tensor": crc32(repr(kept_of).encode())}, ALIKE)
        return masks

    def one_cost(self) -> Cost | None:
        """What every element costs; None if some cost more than others."""
        different = set(self.costs.values())
        return different.pop() if len(different) == 1 else None

    def _greater(self, name: str, threshold: torch.Tensor) -> torch.Tensor:
        mask = torch.empty(self.scores[name].shape, dtype=torch.bool)
        for piece, found in self._compared(torch.gt, name, threshold):
            mask.view(-1)[piece] = found
        return mask

    def _compared(
        self, rule: Rule, name: str, threshold: torch.Tensor
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Piece after piece in flat order, and where in it `rule` holds between a score and the
        threshold and the element may win."""
        flat = self.scores[name].reshape(-1)
        flags = self.within[name].reshape(-1) if name in self.within else None
        for start in range(0, len(flat), PIECE):
            piece = slice(start, start + PIECE)
            found = rule(flat[piece].to(self.wide), threshold)
            yield piece, found if flags is None else found & flags[piece].to(found.device)

    def _fill(self, name: str, mask: torch.Tensor, threshold: torch.Tensor, count: int) -> int:
        """Keep the first `count` ties in flat order; returns how many of them there were.

        Their places are never listed: where most scores are equal, that would take more memory
        than the scores.
        """
        ties = sum(int(found.count_nonzero()) for _, found in self._ties(name, threshold))
        everyones = self.ranks.everyones(ties)
        # Those of the processes before this one come first.
        left = min(ties, count - sum(everyones[: self.ranks.rank]))
        for piece, found in self._ties(name, threshold):
            if left <= 0:
                break
            places = torch.nonzero(found).flatten()[:left].cpu()
            mask.view(-1)[piece][places] = True
            left -= len(places)
        return min(count, sum(everyones))

    def _ties(self, name: str, threshold: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
        return self._compared(torch.eq, name, threshold)
