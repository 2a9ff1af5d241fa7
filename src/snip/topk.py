"""The one top-k: exact, without a flat copy of all scores, the same on every device.

Floats are compared by their bits, as integers in the same order. Counting the values of the
leading 16 bits over all tensors, then of the next 16 among those that share the decisive
prefix, finds the k-th largest exactly. On 17M floats this takes a fifth of the time of
`numpy.partition` and a thirtieth of `torch.topk` (bench/topk.py), with a few megabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

CHUNK = 1 << 20  # elements in flight: bounds the temporary memory
DIGIT = 16


def keep_top(
    scores: Mapping[str, torch.Tensor],
    kept: int,
    within: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Bool masks with exactly `kept` True: the highest scores, the first position among equals.

    `within` restricts the choice to the positions that are True in it.
    """
    wide = torch.float64 if _any_double(scores) else torch.float32
    threshold = _kth_largest(scores, kept, within, wide) if kept else None
    masks = {}
    missing = kept
    for name, score in scores.items():
        parts = []
        for key in _keys(score, _allowed(within, name), wide):
            parts.append((key > threshold) if threshold is not None else key != key)
        masks[name] = torch.cat(parts).view(score.shape) if parts else score.to(torch.bool)
        missing -= int(masks[name].sum())
    if threshold is not None:
        _fill_ties(masks, scores, within, threshold, missing, wide)
    return {name: mask.cpu() for name, mask in masks.items()}


def _kth_largest(
    scores: Mapping[str, torch.Tensor],
    k: int,
    within: Mapping[str, torch.Tensor] | None,
    wide: torch.dtype,
) -> int:
    """The integer key of the k-th largest score: one counting pass per 16 bits."""
    bits = torch.finfo(wide).bits
    prefix = 0
    for shift in range(bits - DIGIT, -1, -DIGIT):
        counts = torch.zeros(1 << DIGIT, dtype=torch.int64)
        for name, score in scores.items():
            for key in _keys(score, _allowed(within, name), wide):
                digits = _digits(key, shift, bits, prefix)
                counts += torch.bincount(digits, minlength=1 << DIGIT).cpu()
        above = counts.flip(0).cumsum(0)  # how many lie at or above each digit, from the top
        place = int(torch.searchsorted(above, k))
        digit = (1 << DIGIT) - 1 - place
        k -= int(above[place] - counts[digit])
        # The leading digit is signed; `_digits` moved it up by half its range.
        prefix = digit - (1 << (DIGIT - 1)) if shift == bits - DIGIT else (prefix << DIGIT) | digit
    return prefix


def _digits(key: torch.Tensor, shift: int, bits: int, prefix: int) -> torch.Tensor:
    """The 16 bits at `shift` of the keys that start with `prefix`, in 0..65535."""
    if shift == bits - DIGIT:
        return (key >> shift) + (1 << (DIGIT - 1))
    matching = key[(key >> (shift + DIGIT)) == prefix]
    return (matching >> shift) & ((1 << DIGIT) - 1)


def _keys(
    score: torch.Tensor, allowed: torch.Tensor | None, wide: torch.dtype
) -> Iterator[torch.Tensor]:
    """Scores as integers in the same order, a chunk at a time, in flat order."""
    integer = torch.int32 if wide == torch.float32 else torch.int64
    lowest = torch.iinfo(integer).min  # no finite score has this key
    flags = None if allowed is None else allowed.to(score.device).reshape(-1)
    for start in range(0, score.numel(), CHUNK):
        # Adding zero turns -0.0 into +0.0: the two are equal and must tie.
        bits = (score.reshape(-1)[start : start + CHUNK].to(wide) + 0.0).view(integer)
        key = torch.where(bits < 0, bits ^ torch.iinfo(integer).max, bits)
        if flags is not None:
            key = key.masked_fill_(~flags[start : start + CHUNK], lowest)
        yield key


def _fill_ties(
    masks: dict[str, torch.Tensor],
    scores: Mapping[str, torch.Tensor],
    within: Mapping[str, torch.Tensor] | None,
    threshold: int,
    missing: int,
    wide: torch.dtype,
) -> None:
    """Among scores equal to the threshold the lowest (parameter, flat index) wins."""
    for name, score in scores.items():
        start = 0
        for key in _keys(score, _allowed(within, name), wide):
            if missing == 0:
                return
            ties = torch.nonzero(key == threshold).flatten()[:missing]
            masks[name].view(-1)[ties + start] = True
            missing -= len(ties)
            start += len(key)


def _allowed(within: Mapping[str, torch.Tensor] | None, name: str) -> torch.Tensor | None:
    return None if within is None else within.get(name)


def _any_double(scores: Mapping[str, torch.Tensor]) -> bool:
    return any(score.dtype == torch.float64 for score in scores.values())
