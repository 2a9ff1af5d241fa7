"""The order in which the weights of a sparse convolution are used, prepared once with numpy."""

import ctypes
from ctypes import c_int32, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np

from snip.common.errors import InputError
from snip.engine.kernels.tiling import Costs, Workload, choose, packed_shape

FIRST, LAST = 1, 2  # places of a segment among those of its output
NUMBERS = (
    *("lanes", "in_channels", "in_h", "in_w", "out_channels", "out_h", "out_w"),
    *("in_step_h", "in_step_w", "out_step_h", "out_step_w", "grid_h", "grid_w", "top", "left"),
    *("tile_h", "tile_w", "pack_h", "pack_w", "pack_phases", "chunks", "segments", "entries"),
)
ARRAYS = (
    *("chunk_channel", "channels", "chunk_segment"),
    *("segment_out", "segment_entry", "segment_place", "offset", "order", "silent"),
)


class ConvPlanStruct(ctypes.Structure):
    """Mirrors struct ConvPlan of native/conv_plan.hpp."""

    _fields_ = (
        *((name, c_int32) for name in NUMBERS),
        *((name, c_void_p) for name in ARRAYS),
        ("silents", c_int32),
    )


@dataclass(frozen=True, eq=False)
class Taps:
    """Every surviving weight as (out, input channel, input row and column relative to the output).

    An "out" is an output channel; in the product back to the input of a strided layer it is one
    phase of one channel, phases being numbered within the channel.
    """

    lanes: int
    in_shape: tuple[int, int, int]  # the tensor read: channels, height, width
    out_shape: tuple[int, int, int]  # the tensor written
    in_step: tuple[int, int]
    out_step: tuple[int, int]
    grid: tuple[int, int]
    out: np.ndarray
    channel: np.ndarray
    row: np.ndarray
    col: np.ndarray

    @property
    def outs(self) -> int:
        """Number of outs, with or without weights."""
        return self.out_shape[0] * self.out_step[0] * self.out_step[1]


class ConvPlan:
    """Arrays of one plan and the struct that points into them; immutable."""

    def __init__(self, taps: Taps, vector: int, costs: Costs) -> None:
        self.taps = taps
        self.arrays, numbers = _arrange(taps, vector, costs)
        pointers = {name: array.ctypes.data for name, array in self.arrays.items()}
        self.struct = ConvPlanStruct(**numbers, **pointers, silents=len(self.arrays["silent"]))

    def __deepcopy__(self, memo: Any) -> "ConvPlan":
        return self


def _arrange(taps: Taps, vector: int, costs: Costs) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    top, left = (int(a.min()) if a.size else 0 for a in (taps.row, taps.col))
    span = tuple(int(np.ptp(a)) + 1 if a.size else 1 for a in (taps.row, taps.col))
    used = np.bincount(taps.channel, minlength=taps.in_shape[0]) > 0
    channels, local = np.flatnonzero(used), (np.cumsum(used) - 1)[taps.channel]
    live = np.bincount(taps.out, minlength=taps.outs)
    work = Workload(
        lanes=taps.lanes,
        grid=taps.grid,
        step=taps.in_step,
        span=(span[0], span[1]),
        channels=max(1, len(channels)),
        outs=int(np.count_nonzero(live)),
        kept=len(taps.out),
        vector=vector,
    )
    tiling = choose(work, costs)
    pack_h, pack_w, phases = packed_shape(work, tiling.rows, tiling.cols)
    chunk, inside = np.divmod(local, tiling.channels)
    order = _sorted(_sorted(np.arange(len(chunk)), taps.out), chunk)
    phase, col = (taps.col - left) % taps.in_step[1], (taps.col - left) // taps.in_step[1]
    position = (inside * pack_h + taps.row - top) * pack_w + phase * (pack_w // phases) + col
    if pack_h * pack_w * tiling.channels * taps.lanes * 4 >= 2**31:
        raise InputError(f"a convolution over {taps.in_shape} is too large for 32-bit offsets")
    chunks = -(-len(channels) // tiling.channels)
    arrays = _segments(taps, chunk[order], order, chunks) | {
        "chunk_channel": np.minimum(np.arange(chunks + 1) * tiling.channels, len(channels)),
        "channels": channels,
        "offset": position[order] * (taps.lanes * 4),
        "order": order,
        "silent": np.flatnonzero(live == 0),
    }
    numbers = dict(
        zip(
            NUMBERS,
            (
                *(taps.lanes, *taps.in_shape, *taps.out_shape, *taps.in_step, *taps.out_step),
                *(*taps.grid, top, left, tiling.rows, tiling.cols, pack_h, pack_w, phases),
                *(chunks, len(arrays["segment_out"]), len(order)),
            ),
            strict=True,
        )
    )
    kinds = {name: np.uint8 if name == "segment_place" else np.int32 for name in ARRAYS}
    return {n: np.ascontiguousarray(arrays[n], kinds[n]) for n in ARRAYS}, numbers


def _sorted(order: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The order, sorted by key without disturbing equals; numpy has a linear sort for 16 bits."""
    small = key.size == 0 or key.max() < 2**16
    keys = key[order].astype(np.uint16 if small else np.int64)
    return order[np.argsort(keys, kind="stable")]


def _segments(
    taps: Taps, chunk: np.ndarray, order: np.ndarray, chunks: int
) -> dict[str, np.ndarray]:
    """Runs of one out within one chunk, and whether each is the first or last of its out."""
    key = chunk * taps.outs + taps.out[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    owner, out = np.divmod(key[starts], taps.outs)
    first, last = np.zeros(len(starts), np.uint8), np.zeros(len(starts), np.uint8)
    # np.unique returns the first occurrence: chunks ascend, so it is the first (or last) chunk.
    first[np.unique(out, return_index=True)[1]] = FIRST
    last[len(out) - 1 - np.unique(out[::-1], return_index=True)[1]] = LAST
    return {
        "chunk_segment": np.searchsorted(owner, np.arange(chunks + 1)),
        "segment_out": out,
        "segment_entry": np.append(starts, len(key)),
        "segment_place": first | last,
    }
