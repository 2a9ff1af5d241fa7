"""Positions of surviving weights in few bits: the gaps between them, packed.

Each gap is a field of `width` bits; a field of ones says "this many, and go on". With one bit per
field that is a bitmap; wider fields pay where little survives. The best width is chosen by size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

WIDTHS = range(1, 17)


def encode(positions: Ints) -> tuple[Bytes, int]:
    """Sorted positions -> packed gaps and the width of their fields."""
    gaps = np.diff(positions, prepend=-1) - 1
    width = min(WIDTHS, key=lambda bits: _fields(gaps, bits) * bits)
    more = (1 << width) - 1
    skips, rest = np.divmod(gaps, more)
    ends = np.cumsum(skips + 1) - 1
    fields = np.full(_fields(gaps, width), more, dtype=np.uint16)
    fields[ends] = rest
    bits = (fields[:, None] >> np.arange(width, dtype=np.uint16)) & 1
    return np.packbits(bits.astype(np.uint8)), width


def decode(packed: Bytes, width: int, kept: int, total: int) -> Ints:
    """The `kept` positions below `total`; ValueError if the bytes say anything else."""
    if width not in WIDTHS or not 0 <= kept <= total:
        raise ValueError(f"no {kept} of {total} positions in fields of {width} bits")
    bits = np.unpackbits(packed)
    fields = bits[: len(bits) // width * width].reshape(-1, width) @ (1 << np.arange(width))
    more = (1 << width) - 1
    last = fields != more
    positions = (np.cumsum(np.where(last, fields + 1, more)) - 1)[last][:kept]
    if len(positions) != kept or (kept and positions[-1] >= total):
        raise ValueError(f"the packed positions are not {kept} of {total}")
    return positions


def _fields(gaps: Ints, width: int) -> int:
    return len(gaps) + int((gaps // ((1 << width) - 1)).sum())
