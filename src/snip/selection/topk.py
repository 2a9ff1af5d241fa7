"""The one top-k: exact, without a flat copy of all scores, the same on every device.

Floats are compared by their bits, as integers in the same order. Counting the values of the
leading 16 bits over all tensors, then of the next 16 among those that share the decisive
prefix, finds the k-th largest exactly, with a few megabytes of temporary memory; bench/topk.py
has its time beside `numpy.partition` and `torch.topk`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch

CHUNK = 1 << 18  # elements in flight: bounds the temporary memory
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
    wide = (
        torch.float64 if any(s.dtype == torch.float64 for s in scores.values()) else torch.float32
    )
    race = _Race(scores, within or {}, costs or dict.fromkeys(scores, 1), wide)
    if race.total_cost() <= kept:
        return {name: race.allowed(name).clone() for name in scores}
    if kept <= 0:
        return {name: torch.zeros(score.shape, dtype=torch.bool) for name, score in scores.items()}
    threshold = race.score_of(race.decisive_key(kept))
    masks = {name: race.compare(torch.gt, name, threshold) for name in scores}
    left = kept - sum(int(mask.sum()) * race.costs[name] for name, mask in masks.items())
    for name, mask in masks.items():
        if left < min(race.costs.values()):
            break
        left -= race.costs[name] * _fill(
            mask, race.compare(torch.eq, name, threshold), left // race.costs[name]
        )
    return masks


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
            cost * (int(self.within[n].sum()) if n in self.within else self.scores[n].numel())
            for n, cost in self.costs.items()
        )

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
        """The scores as integers that sort alike, a chunk at a time, in flat order."""
        integer, score = _INTEGER[self.wide], self.scores[name]
        flags = self.within[name].to(score.device).reshape(-1) if name in self.within else None
        for start in range(0, score.numel(), CHUNK):
            # Adding zero turns -0.0 into +0.0: the two are equal and must tie.
            bits = (score.reshape(-1)[start : start + CHUNK].to(self.wide) + 0.0).view(integer)
            # Negative floats order backwards by their bits: flip all but the sign.
            sign = bits >> (torch.finfo(self.wide).bits - 1)
            key = bits ^ (sign & torch.iinfo(integer).max)
            yield key if flags is None else key[flags[start : start + CHUNK]]


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
