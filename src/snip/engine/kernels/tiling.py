"""Chooses the tile of outputs and the chunk of input channels of a sparse convolution.

A model of the cycles spent per tile, in the terms that were measured to matter: multiply-adds whose
operand comes from the first- or second-level cache, partial sums passed between chunks, packing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

L1_BYTES = 22 << 10  # of 32 KiB: the rest is for weights and sums passing through
L2_BYTES = 320 << 10
ROOMS = (*(L1_BYTES << i for i in range(4)), L2_BYTES, 2 * L2_BYTES)  # for a chunk


@dataclass(frozen=True)
class Workload:
    """What a choice of tiles depends on."""

    lanes: int
    grid: tuple[int, int]  # outputs of one phase
    step: tuple[int, int]  # input rows and columns between neighbouring outputs
    span: tuple[int, int]  # rows and columns of input that an output may touch
    channels: int  # input channels in use
    outs: int  # output channels in use, times phases
    kept: int
    vector: int  # floats per vector


@dataclass(frozen=True)
class Tiling:
    """Outputs per tile and input channels per chunk."""

    rows: int
    cols: int
    channels: int


def packed_shape(work: Workload, rows: int, cols: int) -> tuple[int, int, int]:
    """Rows, positions per row and column phases of the packed input of one channel."""
    phases = min(work.step[1], work.span[1])
    height = (rows - 1) * work.step[0] + work.span[0]
    width = cols + (work.span[1] - 1) // work.step[1]
    return height, width * phases, phases


def choose(work: Workload) -> Tiling:
    """The candidate of least modelled cost."""
    return min(_candidates(work), key=lambda tiling: _cycles(work, tiling))


def _candidates(work: Workload) -> Iterator[Tiling]:
    for cols in sorted({-(-work.grid[1] // parts) for parts in range(1, work.grid[1] + 1)}):
        if cols * work.lanes < min(work.grid[1] * work.lanes, 6 * work.vector):
            continue  # too narrow for the registers
        for rows in sorted({-(-work.grid[0] // parts) for parts in range(1, work.grid[0] + 1)}):
            height, width, _ = packed_shape(work, rows, cols)
            bytes_each = height * width * work.lanes * 4
            for room in ROOMS:
                yield Tiling(rows, cols, max(1, min(work.channels, room // bytes_each)))


def _cycles(work: Workload, tiling: Tiling) -> float:
    """Modelled cycles for one block of the batch."""
    height, width, _ = packed_shape(work, tiling.rows, tiling.cols)
    packed = height * width * work.lanes * 4
    tiles = -(-work.grid[0] // tiling.rows) * (-(-work.grid[1] // tiling.cols))
    vectors = -(-tiling.cols * work.lanes // work.vector)
    chunks = -(-work.channels // tiling.channels)
    per_out = work.kept / max(work.outs, 1)
    # Expected number of chunks in which an output has a weight, weights falling at random.
    segments = work.outs * chunks * (1 - (1 - 1 / chunks) ** per_out)
    resident = min(tiling.channels, work.channels) * packed
    fma = 0.55 + 0.5 * max(0.0, 1 - L1_BYTES / resident) + (1.0 if resident > L2_BYTES else 0.0)
    pieces = -(-vectors // 12)
    registers = tiling.rows * pieces if vectors > 6 else -(-tiling.rows // max(1, 12 // vectors))
    products = work.kept * (tiling.rows * vectors * fma + registers * 0.8)
    sums_bytes = work.outs * tiling.rows * vectors * work.vector * 4
    passed = (segments - work.outs) * tiling.rows * vectors
    passing = passed * (3.0 if sums_bytes > L2_BYTES else 2.0)
    calls = segments * registers * 18
    packing = work.channels * packed / (work.vector * 4) * 1.6
    return tiles * (products + max(0.0, passing) + calls + packing)
