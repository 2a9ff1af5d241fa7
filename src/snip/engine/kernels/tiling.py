"""Chooses the tile of outputs and the chunk of input channels of a sparse convolution.

The choice is the tiling of least modelled cost. The model counts what a kernel does with a tiling
(multiply-adds by the cache that their operand comes from, partial sums passed between chunks,
segments started, inputs packed) and prices each kind of work. The prices were fitted to timed
combinations of layer, density and tiling: bench/fit_tiling.py times them and fits the prices again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

L1_BYTES = 24 << 10  # of 32 KiB: the rest is for weights and sums passing through
L2_BYTES = 320 << 10
ROOMS = (*(L1_BYTES * i // 2 for i in (1, 2, 3, 4, 8)), L2_BYTES)  # tried for a chunk


@dataclass(frozen=True)
class Costs:
    """Cycles of one kernel for each kind of work that `counts` tells."""

    held: int  # vectors of a tile kept in registers (with vectors of 8 floats); not a cost
    near: float  # multiply-add from the first-level cache
    far: float  # from the second
    beyond: float  # from farther
    weight: float  # per weight and register tile
    passed: float  # per vector of partial sums (or of dy) read again for the next chunk
    segment: float  # per segment: the weights of one output in one chunk and tile
    segment_row: float  # per row of a segment
    out_row: float  # per row of an output in a tile: short runs of memory are slow to reach
    in_row: float  # per packed row of an input channel
    packed: float  # per packed vector


# Printed by `python bench/fit_tiling.py --fit` from results/tiling.json.
FORWARD = Costs(14, 0.191, 0.691, 0.691, 2.133, 2.725, 16.5, 0.0, 38.252, 0.0, 8.398)
WEIGHTS = Costs(12, 0.252, 0.83, 0.83, 5.606, 1.949, 11.551, 0.067, 60.116, 0.0, 4.414)


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


def choose(work: Workload, costs: Costs) -> Tiling:
    """The candidate of least modelled cost."""
    return min(candidates(work), key=lambda tiling: cycles(work, tiling, costs))


def candidates(work: Workload) -> Iterator[Tiling]:
    """Tilings worth considering: tiles that divide the grid evenly, chunks that fit a cache."""
    height, width = ({-(-size // n) for n in range(1, size + 1)} for size in work.grid)
    for cols in sorted(width):
        if cols * work.lanes < min(work.grid[1] * work.lanes, 4 * work.vector):
            continue  # too narrow for the registers
        for rows in sorted(height):
            packed = packed_shape(work, rows, cols)
            bytes_each = packed[0] * packed[1] * work.lanes * 4
            for channels in {max(1, min(work.channels, room // bytes_each)) for room in ROOMS}:
                yield Tiling(rows, cols, channels)


def _registers(rows: int, vectors: int, held: int) -> int:
    """Register tiles that cover a tile of so many rows and vectors per row."""
    if vectors > held:
        return rows * -(-vectors // held)
    together = 1
    while 2 * together <= rows and 2 * together * vectors <= held:
        together *= 2
    return rows // together + (rows % together).bit_count()


def cycles(work: Workload, tiling: Tiling, costs: Costs) -> float:
    """Modelled cycles for one block of the batch."""
    return sum(getattr(costs, name) * n for name, n in counts(work, tiling, costs.held).items())


def counts(work: Workload, tiling: Tiling, held: int) -> dict[str, float]:
    """How often a kernel does what each field of Costs prices, for one block of the batch."""
    height, width, _ = packed_shape(work, tiling.rows, tiling.cols)
    packed = height * width * work.lanes * 4
    tiles = -(-work.grid[0] // tiling.rows) * (-(-work.grid[1] // tiling.cols))
    vectors = -(-tiling.cols * work.lanes // work.vector)
    outputs = tiles * tiling.rows * vectors
    chunks = -(-work.channels // tiling.channels)
    # Expected number of chunks in which an output has a weight, weights falling at random.
    each = chunks * (1 - (1 - 1 / chunks) ** (work.kept / max(work.outs, 1)))
    resident = min(tiling.channels, work.channels) * packed
    missed = max(0.0, 1 - L1_BYTES / resident)
    products, segments = work.kept * outputs, tiles * each * work.outs
    return {
        "near": products * (1 - missed),
        "far": products * missed * (resident <= L2_BYTES),
        "beyond": products * missed * (resident > L2_BYTES),
        "weight": tiles * work.kept * _registers(tiling.rows, vectors, held),
        "passed": max(0.0, each - 1) * work.outs * outputs,
        "segment": segments,
        "segment_row": segments * tiling.rows,
        "out_row": tiles * work.outs * tiling.rows,
        "in_row": tiles * work.channels * height,
        "packed": tiles * work.channels * packed / (work.vector * 4),
    }
