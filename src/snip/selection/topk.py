"""The one top-k: exact, without a flat copy of all scores, the same on every device.

A sample of the scores tells between which two values the k-th largest lies, and one pass counts
what is above and collects what is between. Among those few, floats are compared by their bits, as
integers in the same order: counting the values of the leading 16 bits, then of the next 16 among
those that share the decisive prefix, finds the k-th largest exactly. If the sample was wrong, or
too many scores are equal, all are counted so: slower, with a few megabytes of temporary memory.
bench/topk.py has the time beside `numpy.partition` and `torch.topk`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import torch

CHUNK = 1 << 18  # elements in flight: bounds the temporary memory
WAVE = 16  # chunks that threads split before the places found are counted against the bound
STRIDE = 251  # every 251st element is in the sample; a prime, which no layer's shape has
MANY = 1 << 20  # from so many elements on a sample pays
WIDE = 6.0  # standard deviations of the sample's rank on each side: the k-th is hardly ever outside
MOST = 16  # the share 1/16 of the elements may be collected, which bounds the memory
DIGIT = 16
DIGITS = 1 << DIGIT
Cost = int | Fraction  # exact, so that what is kept never costs more than it may
Rule = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}


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
    # Scores may belong to a graph; the threads below do not know of a `no_grad` around this call.
    race = _Race({n: score.detach() for n, score in scores.items()}, within or {}, prices, wide)
    if race.total_cost() <= kept:
        return {name: race.allowed(name).clone() for name in scores}
    if kept <= 0:
        return {name: torch.zeros(score.shape, dtype=torch.bool) for name, score in scores.items()}
    found = race.by_sample(kept)
    return race.by_counting(kept) if found is None else found


@dataclass(frozen=True)
class _Race:
    """The scores that compete, where they may win, and what an element of each tensor costs."""

    scores: Mapping[str, torch.Tensor]
    within: Mapping[str, torch.Tensor]
    costs: Mapping[str, Cost]
    wide: torch.dtype

    def allowed(self, name: str) -> torch.Tensor:
        """Where an element may be kept."""
        if name in self.within:
            return self.within[name].cpu()
        return torch.ones(self.scores[name].shape, dtype=torch.bool)

    def total_cost(self) -> Cost:
        """What all elements that may be kept cost together."""
        return sum(
            cost
            * (int(self.within[n].count_nonzero()) if n in self.within else self.scores[n].numel())
            for n, cost in self.costs.items()
        )

    def by_sample(self, kept: Cost) -> dict[str, torch.Tensor] | None:
        """The masks, if the k-th largest score lies where a sample says, among few; else None."""
        total = sum(score.numel() for score in self.scores.values())
        if total < MANY:
            return None
        low, high = self._bounds(kept)
        room = total // MOST
        masks: dict[str, torch.Tensor] = {}
        places: dict[str, torch.Tensor] = {}
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            for name in self.scores:
                masks[name], places[name], above = self._split(name, low, high, room, pool)
                kept -= self.costs[name] * above
                room -= len(places[name])
                if kept < 0 or room < 0:
                    return None
        close = {n: score.reshape(-1).cpu()[places[n]] for n, score in self.scores.items()}
        if sum(self.costs[name] * len(found) for name, found in close.items()) < kept:
            return None
        # The places are in flat order, so that the first among equals is the first here as well.
        for name, wins in keep_top(close, kept, costs=self.costs).items():
            masks[name].view(-1)[places[name][wins]] = True
        return masks

    def by_counting(self, kept: Cost) -> dict[str, torch.Tensor]:
        """The masks, by counting digits of all scores."""
        threshold = self.score_of(self.decisive_key(kept))
        masks = {name: self.compare(torch.gt, name, threshold) for name in self.scores}
        left = kept - sum(int(m.count_nonzero()) * self.costs[n] for n, m in masks.items())
        for name, mask in masks.items():
            if left < min(self.costs.values()):
                break
            ties = self.compare(torch.eq, name, threshold)
            left -= self.costs[name] * _fill(mask, ties, int(left // self.costs[name]))
        return masks

    def _split(
        self, name: str, low: float, high: float, room: int, pool: Executor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """True where a score is above `high`, and how often; the places of those from low to high.

        Only where an element may be kept; a few chunks after the first place too many it ends.
        """
        flat = self.scores[name].reshape(-1)
        flags = self.within[name].reshape(-1) if name in self.within else None
        mask = np.empty(len(flat), dtype=np.bool_)

        def split(start: int) -> tuple[npt.NDArray[np.int64], int]:
            # numpy compares and finds few of many several times as fast as torch on one thread,
            # and lets other threads work meanwhile.
            chunk = slice(start, start + CHUNK)
            values, above = flat[chunk].to(self.wide).cpu().numpy(), mask[chunk]
            np.greater(values, high, out=above)
            between = np.greater_equal(values, low) ^ above
            if flags is not None:
                allowed = flags[chunk].cpu().numpy()
                above &= allowed
                between &= allowed
            return np.flatnonzero(between) + start, int(np.count_nonzero(above))

        found = [(np.empty(0, dtype=np.int64), 0)]
        for wave in range(0, len(flat), WAVE * CHUNK):
            found += pool.map(split, range(wave, min(wave + WAVE * CHUNK, len(flat)), CHUNK))
            if sum(len(places) for places, _ in found) > room:
                break
        places = torch.from_numpy(np.concatenate([places for places, _ in found]))
        shape = self.scores[name].shape
        return torch.from_numpy(mask).reshape(shape), places, sum(count for _, count in found)

    def _bounds(self, kept: Cost) -> tuple[float, float]:
        """Two values of a sample with the k-th largest score between them, in all likelihood."""
        samples = {name: self._sample(name) for name in self.scores}
        values = torch.cat(list(samples.values()))
        costs = torch.cat(
            [values.new_full((len(s),), float(self.costs[name]), dtype=torch.float64)
             for name, s in samples.items()]
        )  # fmt: skip
        # numpy sorts ten times as fast as torch.
        order = torch.from_numpy(np.argsort(values.numpy())).flip(0)
        values, spent = values[order], costs[order].cumsum(0) * STRIDE
        rank = int(torch.searchsorted(spent, float(kept)))
        margin = int(WIDE * (rank + 1) ** 0.5) + 1
        high = float(values[rank - margin]) if rank >= margin else float("inf")
        low = float(values[rank + margin]) if rank + margin < len(values) else float("-inf")
        return low, high

    def _sample(self, name: str) -> torch.Tensor:
        """Every 251st score of a tensor, without those that may not win."""
        flat = self.scores[name].reshape(-1)[::STRIDE].to(self.wide)
        if name in self.within:
            flat = flat[self.within[name].to(flat.device).reshape(-1)[::STRIDE]]
        return flat.cpu()

    def decisive_key(self, left: Cost) -> int:
        """The key at which the elements from the top down cost `left`: a pass per 16 bits."""
        bits = torch.finfo(self.wide).bits
        prefix = 0
        for shift in range(bits - DIGIT, -1, -DIGIT):
            above = self._counts_above(shift, prefix)
            # Sums of costs stay exact numbers of Python: floats would round over the budget.
            place = bisect_left(range(DIGITS - 1), left, key=lambda at: _cost(above, at))
            left -= _cost(above, place - 1) if place else 0
            digit = DIGITS - 1 - place
            # The leading digit is signed; `_digits` moved it up by half its range.
            leading = shift == bits - DIGIT
            prefix = digit - DIGITS // 2 if leading else (prefix << DIGIT) | digit
        return prefix

    def _counts_above(self, shift: int, prefix: int) -> dict[Cost, torch.Tensor]:
        """For each cost, how many elements have at least each digit, the highest digit first."""
        bits = torch.finfo(self.wide).bits
        counts = {cost: torch.zeros(DIGITS, dtype=torch.int64) for cost in self.costs.values()}
        for name in self.scores:
            for key in self._keys(name):
                digits = _digits(key, shift, bits, prefix)
                counts[self.costs[name]] += torch.bincount(digits, minlength=DIGITS).cpu()
        return {cost: count.flip(0).cumsum(0) for cost, count in counts.items()}

    def score_of(self, key: int) -> torch.Tensor:
        """The score whose key this is."""
        integer = _INTEGER[self.wide]
        bits = key if key >= 0 else key ^ torch.iinfo(integer).max
        return torch.tensor(bits, dtype=integer).view(self.wide)

    def compare(self, rule: Rule, name: str, threshold: torch.Tensor) -> torch.Tensor:
        """True where `rule` holds between a score and the threshold, and the element may win."""
        found = rule(self.scores[name].to(self.wide), threshold).cpu().contiguous()
        return found & self.within[name].cpu() if name in self.within else found

    def _keys(self, name: str) -> Iterator[torch.Tensor]:
        """The scores that may win as integers that sort alike, a chunk at a time, in flat order."""
        integer = _INTEGER[self.wide]
        flags = self.within[name].reshape(-1) if name in self.within else None
        for start, values in self._chunks(name):
            # Adding zero turns -0.0 into +0.0: the two are equal and must tie.
            bits = (values + 0.0).view(integer)
            # Negative floats order backwards by their bits: flip all but the sign.
            sign = bits >> (torch.finfo(self.wide).bits - 1)
            key = bits ^ (sign & torch.iinfo(integer).max)
            yield key if flags is None else key[flags[start : start + CHUNK].to(key.device)]

    def _chunks(self, name: str) -> Iterator[tuple[int, torch.Tensor]]:
        """Where a chunk begins, and its scores, in flat order."""
        flat = self.scores[name].reshape(-1)
        for start in range(0, len(flat), CHUNK):
            yield start, flat[start : start + CHUNK].to(self.wide)


def _cost(above: Mapping[Cost, torch.Tensor], place: int) -> Cost:
    """What the elements cost together whose digit is one of the highest `place` + 1."""
    return sum(cost * int(count[place]) for cost, count in above.items())


def _digits(key: torch.Tensor, shift: int, bits: int, prefix: int) -> torch.Tensor:
    """The 16 bits at `shift` of the keys that start with `prefix`, in 0..65535."""
    if shift == bits - DIGIT:
        return (key >> shift) + DIGITS // 2
    matching = key[(key >> (shift + DIGIT)) == prefix]
    return (matching >> shift) & (DIGITS - 1)


def _fill(mask: torch.Tensor, ties: torch.Tensor, count: int) -> int:
    """Keep the first `count` ties in flat order; returns how many there were."""
    winners = torch.nonzero(ties.reshape(-1)).flatten()[:count]
    mask.view(-1)[winners] = True
    return len(winners)
