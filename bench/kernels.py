"""Speed of the sparse kernels over dense torch, layer by layer: python bench/kernels.py [batch]

Forward and both backward products on uniform random masks, activations in the kernels' layout.
Dense torch is the better of its two memory formats for each product. Ratios of best times of one
run hold on a busy machine where the times themselves do not.
"""

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F

from snip.common.timing import Work, best_time
from snip.engine import kernels

SPARSITIES = (0.5, 0.9, 0.95, 0.98, 0.99)
LINEAR = ((784, 300), (1024, 1024))
CONVOLUTIONS = ((64, 32), (128, 16), (256, 8), (512, 4))  # channels, size; 3x3


def best(work: Work) -> float:
    """Shortest of several runs that take about 0.08 seconds together."""
    return best_time(work, rounds=3, seconds=0.08)


def dense_linear(columns: int, rows: int, batch: int) -> float:
    """Seconds of torch's three products."""
    x, weight, dy = (
        torch.randn(batch, columns),
        torch.randn(rows, columns),
        torch.randn(batch, rows),
    )
    works = (lambda: F.linear(x, weight), lambda: dy @ weight, lambda: dy.t() @ x)
    return sum(map(best, works))


def sparse_linear(columns: int, rows: int, batch: int, mask: torch.Tensor) -> float:
    """Seconds of the kernels' three products."""
    index = kernels.LinearIndex.from_mask(mask)
    values, dw = torch.randn(index.kept), torch.empty(index.kept)
    x, dy = torch.randn(columns, batch), torch.randn(rows, batch)
    y, dx = torch.empty_like(dy), torch.empty_like(x)
    forward = best(lambda: kernels.linear_forward(index, values, x, out=y))
    return forward + best(lambda: kernels.linear_backward(index, values, x, dy, dx=dx, dw=dw))


def dense_convolution(channels: int, size: int, batch: int) -> float:
    """Seconds of torch's three products, each in its better memory format."""
    times = []
    for layout in (torch.contiguous_format, torch.channels_last):
        x, dy = (torch.randn(batch, channels, size, size).to(memory_format=layout) for _ in "xy")
        weight = torch.randn(channels, channels, 3, 3).to(memory_format=layout)

        def gradient(which: list[bool], x=x, dy=dy, weight=weight) -> object:
            settings = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
            return torch.ops.aten.convolution_backward(dy, x, weight, None, *settings, which)

        works = (
            lambda x=x, weight=weight: F.conv2d(x, weight, padding=1),
            lambda gradient=gradient: gradient([True, False, False]),
            lambda gradient=gradient: gradient([False, True, False]),
        )
        times.append([best(work) for work in works])
    return sum(map(min, *times))


def sparse_convolution(channels: int, size: int, batch: int, mask: torch.Tensor) -> float:
    """Seconds of the kernels' three products."""
    index = kernels.ConvIndex(mask, (channels, size, size), padding=(1, 1))
    values, dw = torch.randn(index.kept), torch.empty(index.kept)
    x = kernels.rows_to_blocks(torch.randn(batch, channels, size, size))
    dy, y, dx = torch.randn_like(x), torch.empty_like(x), torch.empty_like(x)
    works = (
        lambda: kernels.conv_forward(index, values, x, batch, out=y),
        lambda: kernels.conv_backward_input(index, values, dy, batch, out=dx),
        lambda: kernels.conv_backward_weights(index, x, dy, batch, out=dw),
    )
    return sum(map(best, works))


def report(name: str, dense: float, flops: float, shape: tuple[int, ...], run: Callable) -> None:
    """One line: ratio to dense, and the surviving multiply-adds per second it stands for."""
    cells = [f"{name:<18} {dense * 1e3:9.2f} {flops / dense / 1e9:6.0f} "]
    for sparsity in SPARSITIES:
        mask = torch.rand(shape) >= sparsity
        seconds = run(mask)
        rate = flops * mask.float().mean().item() / seconds / 1e9
        cells.append(f"{dense / seconds:6.1f}x {rate:4.0f}")
    print(" ".join(cells), flush=True)


@torch.no_grad()
def main() -> None:
    """Print the table."""
    batch = int(sys.argv[1]) if len(sys.argv) > 1 else 128
    torch.manual_seed(0)
    if not kernels.available():
        sys.exit(f"No native kernels: {kernels.reason()}")
    print(
        f"batch {batch}, {torch.get_num_threads()} threads, {kernels.instruction_set()}; "
        "per sparsity: speed-up over dense, then GFLOP/s of what survives"
    )
    heads = "".join(f"{f'{s:.0%}':>13}" for s in SPARSITIES)
    print(f"{'layer':<18} {'dense ms':>9} {'GF/s':>6} {heads}")
    for columns, rows in LINEAR:
        work, shape = 6 * columns * rows * batch, (rows, columns)
        dense = dense_linear(columns, rows, batch)
        run = lambda mask, c=columns, r=rows: sparse_linear(c, r, batch, mask)  # noqa: E731
        report(f"linear {columns}-{rows}", dense, work, shape, run)
    for channels, size in CONVOLUTIONS:
        work, shape = 6 * 9 * (channels * size) ** 2 * batch, (channels, channels, 3, 3)
        dense = dense_convolution(channels, size, batch)
        run = lambda mask, c=channels, s=size: sparse_convolution(c, s, batch, mask)  # noqa: E731
        report(f"conv {channels}ch {size}x{size}", dense, work, shape, run)


if __name__ == "__main__":
    main()
