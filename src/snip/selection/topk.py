"""The one top-k: exact, the first position in flat order among equals, the same on every device.

A threshold decides: the score at which the elements from the top down use up the budget. Scores
that lie whole on the CPU are partitioned by numpy; of many, only those above a sampled lower bound
are copied for that. Scores on a GPU, split over ranks (DTensor) or of different costs stay where
they are, and their digits are counted, which is slower but takes 1 MiB or two for any number of
scores. So are those of which too many lie above the bound. bench/topk.py has the time beside
`numpy.partition` and `torch.topk`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch

from snip.distributed.ranks import ALONE, Ranks
from snip.distributed.shards import local, part, ranks_of_tensors, whole_masks
from snip.selection.budgets import left_in

PIECE_ELEMENTS = 1 << 18  # looked at together, which bounds the temporary memory
MAX_COPIED_ELEMENTS = 1 << 22  # up to here one flat copy is small, and the fastest
MAX_COPIED_SHARE = 0.25  # of more elements than that
SAMPLE_STRIDE = 251  # elements; a prime, which no layer's shape has
SAMPLE_DEVIATIONS = 6.0  # standard deviations of a rank in the sample, for a safe bound
DIGIT_BITS = 16
DIGITS = 1 << DIGIT_BITS
SAME_SETTINGS = "Select by the same settings in every process."
Cost = int | Fraction  # exact, so that what is kept never costs more than it may
Tensors = Mapping[str, torch.Tensor]
_INTEGER = {torch.float32: torch.int32, torch.float64: torch.int64}


def keep_top(
    scores: Tensors,
    kept: Cost,
    within: Tensors | None = None,
    costs: Mapping[str, Cost] | None = None,
) -> dict[str, torch.Tensor]:
    """Bool masks with exactly `kept` True: the highest scores, the first position among equals.

    `within` restricts the choice to the positions that are True in it. With `costs`, the cost of
    one element of each tensor, `kept` is what the kept elements may cost together.
    """
    within = within or {}
    prices = {name: costs[name] if costs else 1 for name in scores}
    total = sum(prices[name] * left_in(name, score, within) for name, score in scores.items())
    ranks = ranks_of_tensors(scores)
    if not ranks.alone:
        sizes = [(name, tuple(s.shape), str(s.dtype), prices[name]) for name, s in scores.items()]
        facts = {"kept": kept, "of": total, "scores": crc32(repr(sizes).encode())}
        ranks.agree(facts | {"within": _checksum(within)}, SAME_SETTINGS)
    if total <= kept:
        return {name: _allowed(score.shape, within.get(name)) for name, score in scores.items()}
    one_price = len(set(prices.values())) == 1
    if one_price:  # the budget is a number of elements
        kept //= min(prices.values())
        prices = dict.fromkeys(scores, 1)
    if kept <= 0:
        return {name: torch.zeros(score.shape, dtype=torch.bool) for name, score in scores.items()}
    wide = torch.float64 if torch.float64 in {s.dtype for s in scores.values()} else torch.float32
    flags = {name: part(mask, scores[name]) for name, mask in within.items() if name in scores}
    parts = {n: Part(local(s), flags.get(n), prices[n], wide) for n, s in scores.items()}
    on_cpu = all(own.score.device.type == "cpu" for own in parts.values())
    if one_price and on_cpu and ranks.alone:
        threshold, left = kth_largest([*parts.values()], int(kept))
    else:
        threshold, left = count_digits([*parts.values()], kept, ranks)
    # Every rank gets the masks that all of them put together, so that a later look at them could
    # not tell whether one rank has decided by something else.
    ranks.agree({"threshold": threshold, "kept": kept, "for ties": left}, SAME_SETTINGS)
    return whole_masks(_masks(parts, threshold, left, ranks), scores)


@dataclass(frozen=True)
class Part:
    """Elements of one tensor of scores that this rank holds."""

    score: torch.Tensor
    allowed: torch.Tensor | None  # where an element may be kept; None: everywhere
    price: Cost  # of one element
    wide: torch.dtype  # the type in which the elements of all tensors are compared

    def pieces(self, step: int = 1) -> Iterator[tuple[slice, torch.Tensor]]:
        """Places and values of every `step`-th element; NaN where it may not be kept.

        NaN is not above, below or equal to anything, so that no comparison finds it.
        """
        flat = self.score.reshape(-1)
        allowed = None if self.allowed is None else self.allowed.reshape(-1)
        for start in range(0, len(flat), PIECE_ELEMENTS * step):
            piece = slice(start, start + PIECE_ELEMENTS * step, step)
            values = flat[piece].to(self.wide)
            if allowed is not None:
                values = values.masked_fill(~allowed[piece].to(values.device), torch.nan)
            yield piece, values

    def ties(self, threshold: float) -> int:
        """Number of elements that equal the threshold."""
        return sum(int((values == threshold).count_nonzero()) for _, values in self.pieces())

    def mask(self, threshold: float, ties: int) -> tuple[torch.Tensor, int]:
        """Mask of all above the threshold and of the first `ties` that equal it; how many did.

        Their places are listed for one piece at a time: all of them, where most scores are equal,
        would take more memory than the scores.
        """
        mask = torch.empty(self.score.shape, dtype=torch.bool, device="cpu")
        flat, taken = mask.view(-1), 0
        for piece, values in self.pieces():
            wins = values > threshold
            if taken < ties:
                equal = (values == threshold).nonzero().flatten()[: ties - taken]
                wins.index_fill_(0, equal, True)
                taken += len(equal)
            flat[piece] = wins
        return mask, taken


def kth_largest(parts: list[Part], k: int) -> tuple[float, Cost]:
    """The k-th largest score, and how many of those that equal it are among the k largest."""
    low, room = -np.inf, sum(own.score.numel() for own in parts)
    if room > MAX_COPIED_ELEMENTS:
        low, room = _sampled_lower_bound(parts, k), int(room * MAX_COPIED_SHARE)
    near = _scores_from(parts, low, room) if k <= room else None
    if near is None or len(near) < k:  # too many scores, or the sample was wrong
        return count_digits(parts, k)
    place = len(near) - k
    near.partition(place)
    return float(near[place]), k - int(np.count_nonzero(near[place:] > near[place]))


def count_digits(parts: list[Part], kept: Cost, ranks: Ranks = ALONE) -> tuple[float, Cost]:
    """The score at which all elements from the top down cost `kept`, and what that leaves for ties.

    Floats are compared by their bits, as integers in the same order: counting the leading 16 bits,
    then the next 16 among those that share the decisive prefix, finds the score exactly.
    """
    bits, integer = torch.finfo(parts[0].wide).bits, _INTEGER[parts[0].wide]
    key, left = 0, kept
    for shift in range(bits - DIGIT_BITS, -1, -DIGIT_BITS):
        at_least = _digit_counts(parts, shift, key, ranks)
        # Sums of costs stay exact numbers of Python: floats would round over the budget.
        place = bisect_left(range(DIGITS - 1), left, key=lambda at: _cost(at_least, at))
        left -= _cost(at_least, place - 1) if place else 0
        digit = DIGITS - 1 - place
        # The leading digit is signed; `_digits` moved it up by half its range.
        leading = shift == bits - DIGIT_BITS
        key = digit - DIGITS // 2 if leading else (key << DIGIT_BITS) | digit
    found = torch.tensor(key if key >= 0 else key ^ torch.iinfo(integer).max, dtype=integer)
    return float(found.view(parts[0].wide)), left


def _masks(
    parts: Mapping[str, Part], threshold: float, left: Cost, ranks: Ranks
) -> dict[str, torch.Tensor]:
    """Masks of all above the threshold, and of the first ties that `left` pays for."""
    masks = {}
    for name, own in parts.items():
        ties = int(left // own.price)
        # Those of earlier ranks come first.
        of_ranks = [] if ranks.alone or not ties else ranks.all_gather(own.ties(threshold))
        masks[name], taken = own.mask(threshold, ties - sum(of_ranks[: ranks.rank]))
        left -= own.price * (min(ties, sum(of_ranks)) if of_ranks else taken)
    return masks


def _sampled_lower_bound(parts: list[Part], k: int) -> float:
    """A value that is hardly ever above the k-th largest score, and not far below it."""
    sample = np.concatenate([x.numpy() for own in parts for _, x in own.pieces(SAMPLE_STRIDE)])
    sample = sample[~np.isnan(sample)]
    rank = k / SAMPLE_STRIDE
    place = len(sample) - 1 - int(rank + SAMPLE_DEVIATIONS * (rank + 1) ** 0.5)
    if place < 0:
        return -np.inf
    sample.partition(place)
    return float(sample[place])


def _scores_from(parts: list[Part], low: float, room: int) -> npt.NDArray[np.floating] | None:
    """A copy of the scores that are at least `low`; None if there are more than `room`."""
    copy, size = torch.empty(room, dtype=parts[0].wide, device="cpu").numpy(), 0
    for own in parts:
        for _, values in own.pieces():
            found = values.numpy()
            found = found[found >= low]
            if size + len(found) > room:
                return None
            copy[size : size + len(found)] = found
            size += len(found)
    return copy[:size]


def _digit_counts(
    parts: list[Part], shift: int, prefix: int, ranks: Ranks
) -> dict[Cost, torch.Tensor]:
    """Number of elements of each price that have at least each digit, the highest digit first."""
    device = parts[0].score.device
    counts = {own.price: torch.zeros(DIGITS, dtype=torch.int64, device=device) for own in parts}
    for own in parts:
        for _, values in own.pieces():
            digits = _digits(
                values[~values.isnan()] if own.allowed is not None else values, shift, prefix
            )
            counts[own.price] += torch.bincount(digits, minlength=DIGITS).to(device)
    return {price: ranks.all_reduce(count).flip(0).cumsum(0) for price, count in counts.items()}


def _digits(values: torch.Tensor, shift: int, prefix: int) -> torch.Tensor:
    """The 16 bits at `shift`, in 0..65535, of those values whose bits before them are `prefix`."""
    bits, integer = torch.finfo(values.dtype).bits, _INTEGER[values.dtype]
    # Adding zero turns -0.0 into +0.0: the two are equal and must tie.
    key = (values + 0.0).view(integer)
    # Negative floats order backwards by their bits: flip all but the sign.
    key = key ^ ((key >> (bits - 1)) & torch.iinfo(integer).max)
    if shift == bits - DIGIT_BITS:
        return (key >> shift) + DIGITS // 2
    return (key[(key >> (shift + DIGIT_BITS)) == prefix] >> shift) & (DIGITS - 1)


def _cost(at_least: Mapping[Cost, torch.Tensor], place: int) -> Cost:
    """Cost of the elements whose digit is one of the highest `place` + 1."""
    return sum(price * int(count[place]) for price, count in at_least.items())


def _allowed(shape: torch.Size, within: torch.Tensor | None) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bool) if within is None else within.cpu().clone()


def _checksum(masks: Tensors) -> int:
    found = 0
    for name, mask in masks.items():
        bits: Any = mask.cpu().contiguous().numpy()
        found = crc32(bits, crc32(name.encode(), found))
    return found
