"""The order in which the weights of a sparse convolution are used, prepared once with numpy."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from snip.common.errors import InputError
from snip.engine.kernels.constants import FIRST, LAST
from snip.engine.kernels.structs import ConvPlanStruct
from snip.engine.kernels.tiling import Costs, Tiling, Workload, choose, packed_shape


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
    """Arrays of one plan and the struct that points into them; immutable.

    A given `tiling` is used instead of the one that should cost the least (bench/fit_tiling.py).
    """

    def __init__(
        self, taps: Taps, vector: int, costs: Costs, *, tiling: Tiling | None = None
    ) -> None:
        self.taps, self.work = taps, _workload(taps, vector)
        self.tiling = tiling or choose(self.work, costs)
        _check_sizes(self.work, self.tiling, taps)
        self.arrays = {
            name: np.ascontiguousarray(array, np.uint8 if name == "segment_place" else np.int32)
            for name, array in _arrange(taps, self.work, self.tiling).items()
        }
        pointers = {name: array.ctypes.data for name, array in self.arrays.items()}
        self.struct = ConvPlanStruct(**_sizes(self), **pointers)

    @property
    def kept(self) -> int:
        """Number of surviving weights."""
        return len(self.taps.out)

    def __deepcopy__(self, memo: Any) -> "ConvPlan":
        return self


def _workload(taps: Taps, vector: int) -> Workload:
    """The part of the taps on which the choice of tiles depends."""
    span = tuple(int(np.ptp(a)) + 1 if a.size else 1 for a in (taps.row, taps.col))
    return Workload(
        lanes=taps.lanes,
        grid=taps.grid,
        step=taps.in_step,
        span=(span[0], span[1]),
        channels=max(1, len(np.unique(taps.channel))),
        outs=len(np.unique(taps.out)),
        kept=len(taps.out),
        vector=vector,
    )


def _check_sizes(work: Workload, tiling: Tiling, taps: Taps) -> None:
    """InputError for what the 32-bit numbers of the struct cannot hold."""
    pack_h, pack_w, _ = packed_shape(work, tiling.rows, tiling.cols)
    packed = pack_h * pack_w * tiling.channels * taps.lanes * 4
    if max(packed, taps.outs, *taps.in_shape, *taps.out_shape) >= 2**31:
        raise InputError(f"a convolution over {taps.in_shape} is too large for 32-bit offsets")


def _arrange(taps: Taps, work: Workload, tiling: Tiling) -> dict[str, np.ndarray]:
    """Weights in the order in which they meet the packed input, and where they meet it."""
    pack_h, pack_w, phases = packed_shape(work, tiling.rows, tiling.cols)
    used = np.bincount(taps.channel, minlength=taps.in_shape[0]) > 0
    channels, local = np.flatnonzero(used), (np.cumsum(used) - 1)[taps.channel]
    chunk, inside = np.divmod(local, tiling.channels)
    row = taps.row - _least(taps.row)
    # By row where the input is padded: the kernel leaves out those that read only zeros.
    order = _sorted(np.arange(len(chunk)), row) if _padded(taps) else np.arange(len(chunk))
    order = _sorted(_sorted(order, taps.out), chunk)
    phase, col = (taps.col - _least(taps.col)) % taps.in_step[1], taps.col - _least(taps.col)
    place = phase * (pack_w // phases) + col // taps.in_step[1]
    position = (inside * pack_h + row) * pack_w + place
    chunks = -(-len(channels) // tiling.channels)
    return _segments(taps, chunk[order], order, chunks) | {
        "chunk_channel": np.minimum(np.arange(chunks + 1) * tiling.channels, len(channels)),
        "channels": channels,
        "offset": position[order] * (taps.lanes * 4),
        "row": row[order],
        "order": order,
        "silent": np.flatnonzero(np.bincount(taps.out, minlength=taps.outs) == 0),
    }


def _padded(taps: Taps) -> bool:
    """Whether weights read rows above or below the input."""
    if not taps.row.size:
        return False
    last = (taps.grid[0] - 1) * taps.in_step[0] + int(taps.row.max())
    return _least(taps.row) < 0 or last >= taps.in_shape[1]


def _least(positions: np.ndarray) -> int:
    return int(positions.min()) if positions.size else 0


def _sizes(plan: ConvPlan) -> dict[str, int]:
    """The numbers of struct ConvPlan, which native/conv_plan.hpp describes."""
    taps, tiling, arrays = plan.taps, plan.tiling, plan.arrays
    pack_h, pack_w, phases = packed_shape(plan.work, tiling.rows, tiling.cols)
    (in_channels, in_h, in_w), (out_channels, out_h, out_w) = taps.in_shape, taps.out_shape
    return {
        "lanes": taps.lanes,
        **{"in_channels": in_channels, "in_h": in_h, "in_w": in_w},
        **{"out_channels": out_channels, "out_h": out_h, "out_w": out_w},
        **{"in_step_h": taps.in_step[0], "in_step_w": taps.in_step[1]},
        **{"out_step_h": taps.out_step[0], "out_step_w": taps.out_step[1]},
        **{"grid_h": taps.grid[0], "grid_w": taps.grid[1]},
        **{"top": _least(taps.row), "left": _least(taps.col)},
        **{"tile_h": tiling.rows, "tile_w": tiling.cols},
        **{"pack_h": pack_h, "pack_w": pack_w, "pack_phases": phases},
        "chunks": len(arrays["chunk_channel"]) - 1,
        "segments": len(arrays["segment_out"]),
        "entries": len(arrays["order"]),
        "silents": len(arrays["silent"]),
    }


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
