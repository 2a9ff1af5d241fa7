"""The k-th largest of any number of floats, found by counting digits in a few megabytes of memory.

Floats are compared by their bits, as integers in the same order: counting the values of the leading
16 bits, then of the next 16 among those that share the decisive prefix, finds it exactly. Scores
on a GPU, or split over processes, stay where they are: the counts are summed, which are as many for
a small model as for a large one, and single ones are looked up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch

from snip.distributed.ranks import ALONE, Ranks

CHUNK = 1 << 18  # elements in flight: bounds the temporary memory
DIGIT = 16
DIGITS = 1 << DIGIT
Cost = int | Fraction  # exact, so that what is kept never costs more than it may
_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}


def decisive_score(
    scores: Mapping[str, torch.Tensor],
    within: Mapping[str, torch.Tensor],
    costs: Mapping[str, Cost],
    wide: torch.dtype,
    kept: Cost,
    ranks: Ranks = ALONE,
) -> torch.Tensor:
    """The score at which the elements from the top down cost `kept`.

    `within` tells which elements compete, `costs` what one of each tensor costs, and `wide` is the
    type in which they are compared, float32 or float64. Each of `ranks` gives what it holds of the
    scores, and is told the same.
    """
    integer = _INTEGER[wide]
    key = _Count(scores, within, costs, wide, ranks).decisive_key(kept)
    bits = key if key >= 0 else key ^ torch.iinfo(integer).max
    return torch.tensor(bits, dtype=integer).view(wide)


@dataclass(frozen=True)
class _Count:
    scores: Mapping[str, torch.Tensor]
    within: Mapping[str, torch.Tensor]
    costs: Mapping[str, Cost]
    wide: torch.dtype
    ranks: Ranks

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
        device = next(score.device for score in self.scores.values())
        zeros = torch.zeros(DIGITS, dtype=torch.int64, device=device)
        counts = {cost: zeros.clone() for cost in self.costs.values()}
        for name in self.scores:
            for key in self._keys(name):
                digits = _digits(key, shift, bits, prefix)
                found = torch.bincount(digits, minlength=DIGITS)
                counts[self.costs[name]] += found.to(device)
        return {cost: self.ranks.summed(n).flip(0).cumsum(0) for cost, n in counts.items()}

    def _keys(self, name: str) -> Iterator[torch.Tensor]:
        """The scores that may win as integers that sort alike, a chunk at a time, in flat order."""
        integer = _INTEGER[self.wide]
        flat = self.scores[name].reshape(-1)
        flags = self.within[name].reshape(-1) if name in self.within else None
        for start in range(0, len(flat), CHUNK):
            # Adding zero turns -0.0 into +0.0: the two are equal and must tie.
            bits = (flat[start : start + CHUNK].to(self.wide) + 0.0).view(integer)
            # Negative floats order backwards by their bits: flip all but the sign.
            sign = bits >> (torch.finfo(self.wide).bits - 1)
            key = bits ^ (sign & torch.iinfo(integer).max)
            yield key if flags is None else key[flags[start : start + CHUNK].to(key.device)]


def _cost(above: Mapping[Cost, torch.Tensor], place: int) -> Cost:
    """What the elements cost together whose digit is one of the highest `place` + 1."""
    return sum(cost * int(count[place]) for cost, count in above.items())


def _digits(key: torch.Tensor, shift: int, bits: int, prefix: int) -> torch.Tensor:
    """The 16 bits at `shift` of the keys that start with `prefix`, in 0..65535."""
    if shift == bits - DIGIT:
        return (key >> shift) + DIGITS // 2
    matching = key[(key >> (shift + DIGIT)) == prefix]
    return (matching >> shift) & (DIGITS - 1)
