"""The one top-k: exact, without a flat copy of many scores, the same on every device.

Up to a few million scores are copied side by side, where `numpy.partition` finds the k-th largest.
Of more, a sample tells between which two values it lies, and one pass counts what is above and
collects what is between, to be ranked alone. If the sample was wrong, or too many scores are
equal, or elements have different costs, digits are counted instead (`digits`), which is slower.
Scores that are split over processes (DTensor) are always counted, and no score leaves its process.
So are those on a GPU: of them only the mask comes to the host, a byte for each.
bench/topk.py has the time beside `numpy.partition` and `torch.topk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Lock
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch

from snip.distributed.shards import local, part, ranks_of_tensors, whole_masks
from snip.selection.competition import ALIKE, PIECE, Competition
from snip.selection.digits import Cost, decisive_score

WAVE = 16  # pieces that threads split before it is asked whether there are too many places
FEW = 1 << 22  # up to so many elements a flat copy is small, and the fastest way
STRIDE = 251  # every 251st element is in the sample; a prime, which no layer's shape has
MANY = 1 << 20  # from so many elements on a sample pays, where they have different costs
WIDE = 6.0  # standard deviations of the sample's rank on each side: the k-th is hardly ever outside
MOST = 16  # the share 1/16 of the elements may be collected, which bounds the memory


def keep_top(
    scores: Mapping[str, torch.Tensor],
    kept: Cost,
    within: Mapping[str, torch.Tensor] | None = None,
    costs: Mapping[str, Cost] | None = None,
) -> dict[str, torch.Tensor]:
    """Bool masks with exactly `kept` True: the highest scores, the first position among equals.

    `within` restricts the choice to the positions that are True in it. With `costs`, the cost of
    one element of each tensor, `kept` is what the kept elements may cost together.
    """
    double = any(score.dtype == torch.float64 for score in scores.values())
    wide = torch.float64 if double else torch.float32
    prices = {name: costs[name] if costs else 1 for name in scores}
    within = within or {}
    total, ranks = _total_cost(scores, within, prices), ranks_of_tensors(scores)
    if not ranks.alone:
        sizes = [(name, tuple(s.shape), str(s.dtype), prices[name]) for name, s in scores.items()]
        facts = {"kept": kept, "of": total, "scores": crc32(repr(sizes).encode())}
        ranks.agree(facts | {"within": _checksum(within)}, ALIKE)
    if total <= kept:
        return {name: _allowed(score.shape, within.get(name)) for name, score in scores.items()}
    if kept <= 0:
        return {name: torch.zeros(score.shape, dtype=torch.bool) for name, score in scores.items()}
    # Scores may belong to a graph; the threads below do not know of a `no_grad` around this call.
    own = {name: local(score) for name, score in scores.items()}
    flags = {name: part(mask, scores[name]) for name, mask in within.items() if name in scores}
    race = _Race(own, flags, prices, wide, ranks)
    return whole_masks(race.won(kept), scores)


def _allowed(shape: torch.Size, within: torch.Tensor | None) -> torch.Tensor:
    """Where an element may be kept."""
    return torch.ones(shape, dtype=torch.bool) if within is None else within.cpu().clone()


def _total_cost(
    scores: Mapping[str, torch.Tensor],
    within: Mapping[str, torch.Tensor],
    costs: Mapping[str, Cost],
) -> Cost:
    """What all elements that may be kept cost together."""
    return sum(
        cost * (int(within[n].count_nonzero()) if n in within else scores[n].numel())
        for n, cost in costs.items()
    )


def _checksum(masks: Mapping[str, torch.Tensor]) -> int:
    found = 0
    for name, mask in masks.items():
        bits: Any = mask.cpu().contiguous().numpy()
        found = crc32(bits, crc32(name.encode(), found))
    return found


class _Race(Competition):
    """The ways to find the threshold, of which the fastest is taken."""

    def won(self, kept: Cost) -> dict[str, torch.Tensor]:
        """The masks, by the fastest way there is. Of many processes each gets its own part."""
        threshold = None
        if self.ranks.alone and all(s.device.type == "cpu" for s in self.scores.values()):
            found = self.by_sample(kept)
            if found is not None:
                return found
            threshold = self.by_partition(kept)
        return self.above(self.by_counting(kept) if threshold is None else threshold, kept)

    def by_sample(self, kept: Cost) -> dict[str, torch.Tensor] | None:
        """The masks, if the k-th largest score lies where a sample says, among few; else None."""
        total = sum(score.numel() for score in self.scores.values())
        if total <= (MANY if self.one_cost() is None else FEW):
            return None
        bounds = self._bounds(kept)
        if bounds is None:
            return None
        low, high = bounds
        room = total // MOST
        masks: dict[str, torch.Tensor] = {}
        places: dict[str, torch.Tensor] = {}
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for name in self.scores:
                split = self._split(name, low, high, room, pool)
                if split is None:
                    return None
                masks[name], places[name], above = split
                kept -= self.costs[name] * above
                room -= len(places[name])
                if kept < 0:
                    return None
        close = {n: score.reshape(-1)[places[n]] for n, score in self.scores.items()}
        if sum(self.costs[name] * len(found) for name, found in close.items()) < kept:
            return None
        # The places are in flat order, so that the first among equals is the first here as well.
        for name, wins in keep_top(close, kept, costs=self.costs).items():
            masks[name].view(-1)[places[name][wins]] = True
        return masks

    def by_partition(self, kept: Cost) -> torch.Tensor | None:
        """The score at which the elements from the top down cost `kept`; None if there are many."""
        cost = self.one_cost()
        if cost is None or sum(score.numel() for score in self.scores.values()) > FEW:
            return None
        values = np.concatenate([self._values(name) for name in self.scores])
        place = len(values) - int(-(-kept // cost))  # rounded up, exactly
        values.partition(place)
        return torch.tensor(values[place], dtype=self.wide)

    def by_counting(self, kept: Cost) -> torch.Tensor:
        """The same for any number of elements and any costs, by counting digits of all scores."""
        return decisive_score(self.scores, self.within, self.costs, self.wide, kept, self.ranks)

    def _values(self, name: str, step: int = 1) -> npt.NDArray[np.floating]:
        """Every so many of a tensor's scores, without those that may not win."""
        flat = self.scores[name].reshape(-1)[::step].to(self.wide)
        if name in self.within:
            flat = flat[self.within[name].to(flat.device).reshape(-1)[::step]]
        found: npt.NDArray[np.floating] = flat.numpy()
        return found

    def _split(
        self, name: str, low: float, high: float, room: int, pool: Executor
    ) -> tuple[torch.Tensor, torch.Tensor, int] | None:
        """True where a score is above `high`, and how often; the places of those from low to high.

        Only where an element may be kept. None if there are more places than `room`, of which no
        more than that are ever listed: where most scores are equal they would fill the memory.
        """
        flat = self.scores[name].reshape(-1)
        flags = self.within[name].reshape(-1) if name in self.within else None
        # Not numpy's memory: it asks for large pages, with which this took 180 to 360 ms for 129M
        # scores, and 130 to 160 without.
        kept = torch.empty(self.scores[name].shape, dtype=torch.bool, device="cpu")
        mask = kept.view(-1).numpy()
        lock = Lock()

        def split(start: int) -> tuple[npt.NDArray[np.int64], int]:
            # numpy compares and finds few of many several times as fast as torch on one thread,
            # and lets other threads work meanwhile.
            piece = slice(start, start + PIECE)
            values, above = flat[piece].to(self.wide).numpy(), mask[piece]
            np.greater(values, high, out=above)
            between = np.greater_equal(values, low) ^ above
            if flags is not None:
                allowed = flags[piece].cpu().numpy()
                above &= allowed
                between &= allowed
            nonlocal room
            with lock:
                room -= int(np.count_nonzero(between))
            if room < 0:
                return nothing, 0
            return np.flatnonzero(between) + start, int(np.count_nonzero(above))

        nothing: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)
        found = [(nothing, 0)]
        for wave in range(0, len(flat), WAVE * PIECE):
            found += pool.map(split, range(wave, min(wave + WAVE * PIECE, len(flat)), PIECE))
            if room < 0:
                return None
        places = torch.from_numpy(np.concatenate([places for places, _ in found]))
        return kept, places, sum(count for _, count in found)

    def _bounds(self, kept: Cost) -> tuple[float, float] | None:
        """Two values of a sample with the k-th largest score between them, in all likelihood.

        None if the sample met too few of the elements that may win, such as only a column of a
        matrix that is pruned already.
        """
        # Each stands for STRIDE elements. numpy sorts ten times as fast as torch.
        samples = {name: self._values(name, STRIDE) for name in self.scores}
        values = np.concatenate(list(samples.values()))
        cost = self.one_cost()
        if cost is not None:
            values = np.sort(values)[::-1]
            rank = int(-(-kept // (cost * STRIDE))) - 1
        else:
            costs = [np.full(len(s), float(self.costs[name])) for name, s in samples.items()]
            order = np.argsort(values)[::-1]
            values, spent = values[order], np.concatenate(costs)[order].cumsum() * STRIDE
            rank = int(np.searchsorted(spent, float(kept)))
        margin = int(WIDE * (rank + 1) ** 0.5) + 1
        if rank - margin >= len(values):
            return None
        high = float(values[rank - margin]) if rank >= margin else float("inf")
        low = float(values[rank + margin]) if rank + margin < len(values) else float("-inf")
        return low, high
