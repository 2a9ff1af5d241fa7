"""Cost grows with the surviving weights, not with the dense size.

    python bench/scaling.py

One training step of a two-layer network with a fixed number of surviving weights in ever larger
layers, and of a fixed layer with ever more survivors, as ratios in one run.
"""

from __future__ import annotations

import torch
from cases import training_step
from torch import nn

import snip
from snip.common.timing import best_times

BATCH = 128


def step_of(width: int, kept: int, *, dense: bool = False) -> object:
    """A training step of width-width-10 with `kept` weights left in the first layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, 10))
    batch = torch.randn(BATCH, width), torch.randint(0, 10, (BATCH,))
    mask = torch.zeros(width * width, dtype=torch.bool)
    mask[torch.randperm(width * width)[:kept]] = True
    snip.Masks({"0.weight": mask.view(width, width)}).apply(model)
    if dense:
        snip.release(model)
        return training_step(model, batch)
    return training_step(snip.accelerate(model, batch), batch)


def show(title: str, ways: dict[str, object]) -> None:
    times = best_times(ways, rounds=30)  # type: ignore[arg-type]
    first = next(iter(times.values()))
    print(title)
    for name, seconds in times.items():
        print(f"  {name:28} {seconds * 1e3:8.3f} ms  {seconds / first:6.2f}x the first")


def main() -> None:
    kept = 20_000
    sizes = (512, 1024, 2048, 4096)
    show(
        f"{kept:,} surviving weights, layers of growing dense size (16-fold, 64-fold):",
        {f"{n} x {n} ({kept / n / n:.2%} left)": step_of(n, kept) for n in sizes},
    )
    show(
        "the same layers dense:",
        {f"{n} x {n}": step_of(n, n * n, dense=True) for n in sizes[:3]},
    )
    show(
        "a 2048 x 2048 layer with more and more surviving weights:",
        {f"{k:,} left": step_of(2048, k) for k in (10_000, 20_000, 40_000, 80_000, 160_000)},
    )


if __name__ == "__main__":
    main()
