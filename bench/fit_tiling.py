"""Where the prices in kernels/tiling.py come from: python bench/fit_tiling.py [--seconds 600]

Times the convolution kernels on combinations of layer, density and tiling, in a fixed random order,
and writes them to results/tiling.json with machine and date. A run goes on where the last one of
the same machine and instruction set stopped, for as many seconds as it is given. Then it fits the
model's prices to all timings of the file (least squares of relative errors, no price below zero)
and prints them with the mean error, ready for FORWARD and WEIGHTS. Run it on a quiet machine;
--fit only fits.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, astuple, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snip.common.files import write_text
from snip.common.timing import best_time
from snip.engine import kernels
from snip.engine.kernels.conv import run_product, run_weights
from snip.engine.kernels.library import vector_floats
from snip.engine.kernels.plan import ConvPlan
from snip.engine.kernels.tiling import (
    FORWARD,
    WEIGHTS,
    Costs,
    Tiling,
    Workload,
    candidates,
    counts,
    cycles,
)
from snip.runs.result import environment

RESULTS = Path(__file__).parent.parent / "results" / "tiling.json"
KERNELS = {"forward": FORWARD, "weights": WEIGHTS}
DENSITIES = (0.02, 0.05, 0.1, 0.3)
# channels, outputs, size, kernel, stride
LAYERS = (
    *((3, 64, 32, 3, 1), (64, 64, 32, 3, 1), (128, 128, 16, 3, 1), (256, 256, 8, 3, 1)),
    *((512, 512, 4, 3, 1), (64, 128, 32, 3, 2), (128, 256, 16, 1, 2), (96, 256, 14, 5, 1)),
)
TILINGS = 20  # of a layer and density, at most
PAIRS = ("grid", "step", "span")  # of a Workload; JSON makes lists of them

Combination = tuple[str, tuple[int, ...], float, Tiling]


@cache
def index_of(layer: tuple[int, ...], density: float) -> kernels.ConvIndex:
    """A layer with a uniform random mask, which depends on nothing but the arguments."""
    channels, outs, size, width, stride = layer
    seed = torch.Generator().manual_seed(0)
    mask = torch.rand(outs, channels, width, width, generator=seed) < density
    padding, strides = (width // 2, width // 2), (stride, stride)
    return kernels.ConvIndex(mask, (channels, size, size), strides, padding)


def combinations() -> Iterator[Combination]:
    """All of them, in an order that any number of seconds samples evenly."""
    found: list[Combination] = []
    choice = random.Random(0)
    for layer in LAYERS:
        for density in DENSITIES:
            work = index_of(layer, density).forward_plan.work
            tilings = list(dict.fromkeys(candidates(work)))
            some = choice.sample(tilings, min(TILINGS, len(tilings)))
            found += [(name, layer, density, tiling) for name in KERNELS for tiling in some]
    choice.shuffle(found)
    return iter(found)


def measure(combination: Combination, seconds: float) -> dict[str, Any]:
    """The shortest time of one block of the batch, on one thread."""
    name, layer, density, tiling = combination
    index = index_of(layer, density)
    plan = ConvPlan(index.forward_plan.taps, vector_floats(), KERNELS[name], tiling=tiling)
    x, y = (torch.randn(1, *shape, index.lanes) for shape in (index.in_shape, index.out_shape))
    values = torch.randn(index.kept)
    works = {
        "forward": lambda: run_product(plan, values, x, index.lanes, out=y),
        "weights": lambda: run_weights(plan, x, y, index.lanes, out=values),
    }
    best = best_time(works[name], rounds=3, seconds=seconds)
    made = {"kernel": name, "layer": list(layer), "density": density}
    made |= {"tiling": list(astuple(tiling)), "work": asdict(plan.work)}
    return made | {"seconds": best}


def key_of(timing: dict[str, Any]) -> tuple[Any, ...]:
    """What tells timings apart."""
    names = ("kernel", "layer", "density", "tiling")
    return tuple(str(timing[name]) for name in names)


def load(path: Path, machine: dict[str, Any]) -> list[dict[str, Any]]:
    """Timings of an earlier run; those of another machine do not count."""
    if not path.exists():
        return []
    record = json.loads(path.read_text())
    same = all(record[name] == machine[name] for name in ("machine", "kernels"))
    return record["timings"] if same else []


def save(path: Path, machine: dict[str, Any], timings: list[dict[str, Any]]) -> None:
    """One line per timing, so that changes can be read."""
    rows = ",\n".join(f"    {json.dumps(timing)}" for timing in timings)
    head = json.dumps(machine, indent=2).removesuffix("\n}")
    write_text(path, f'{head},\n  "timings": [\n{rows}\n  ]\n}}\n')


def cycle_seconds() -> float:
    """Seconds of a cycle by /proc/cpuinfo; it only scales the prices, which changes no choice."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    rates = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return 1e-6 / (max(rates) if rates else 3000.0)


def fit(name: str, timings: list[dict[str, Any]], cycle: float) -> tuple[Costs, float]:
    """The prices of one kernel, and their mean relative error."""
    held, names = KERNELS[name].held, [field.name for field in fields(Costs)[1:]]
    rows = [counts(*workload(timing), held) for timing in timings]
    times = np.array([timing["seconds"] for timing in timings])
    table = np.array([[row[each] for each in names] for row in rows]) * cycle / times[:, None]
    # An operand from a farther cache never costs less than one from a nearer: what is fitted is
    # the price of the nearest, and what each step farther adds to it.
    table[:, :3] = np.cumsum(table[:, 2::-1], axis=1)[:, ::-1]
    prices = nonnegative(table)
    error = float(np.abs(table @ prices - 1).mean())
    prices[:3] = np.cumsum(prices[:3])
    return Costs(held, *(round(float(price), 3) for price in prices)), error


def workload(timing: dict[str, Any]) -> tuple[Workload, Tiling]:
    """What was timed."""
    work = {k: tuple(v) if k in PAIRS else v for k, v in timing["work"].items()}
    return Workload(**work), Tiling(*timing["tiling"])


def regret(timings: list[dict[str, Any]], costs: Costs) -> float:
    """How much longer the tilings that `costs` would choose take than the best of those timed."""
    layers: dict[str, list[dict[str, Any]]] = {}
    for timing in timings:
        layers.setdefault(str((timing["layer"], timing["density"])), []).append(timing)
    ratios = []
    for group in layers.values():
        chosen = min(group, key=lambda timing: cycles(*workload(timing), costs))
        ratios.append(chosen["seconds"] / min(timing["seconds"] for timing in group))
    return float(np.mean(ratios)) - 1


def nonnegative(table: np.ndarray) -> np.ndarray:
    """The p >= 0 with table @ p nearest to one; columns that would go below zero are left out."""
    kept = [column for column in range(table.shape[1]) if table[:, column].any()]
    while True:
        solved, *_ = np.linalg.lstsq(table[:, kept], np.ones(len(table)), rcond=None)
        if solved.size == 0 or solved.min() >= 0:
            prices = np.zeros(table.shape[1])
            prices[kept] = solved
            return prices
        del kept[int(solved.argmin())]


def record(path: Path, machine: dict[str, Any], seconds: float, each: float) -> None:
    """Time what is missing until the seconds are over, saving now and then."""
    timings = load(path, machine)
    done, end, saved = set(map(key_of, timings)), time.monotonic() + seconds, time.monotonic()
    for name, layer, density, tiling in combinations():
        wanted = {"kernel": name, "layer": list(layer), "density": density}
        if key_of(wanted | {"tiling": list(astuple(tiling))}) in done:
            continue
        if time.monotonic() > end:
            break
        timings.append(measure((name, layer, density, tiling), each))
        if time.monotonic() - saved > 30:
            save(path, machine, timings)
            saved = time.monotonic()
    save(path, machine, timings)


def main() -> None:
    """Time and fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="time at most this long")
    parser.add_argument("--each", type=float, default=0.1, help="seconds of one combination")
    parser.add_argument("--file", type=Path, default=RESULTS)
    parser.add_argument("--fit", action="store_true", help="only fit what the file has")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    machine = environment(torch.device("cpu")) | {"kernels": kernels.instruction_set()}
    machine["cycle_seconds"] = cycle_seconds()
    if not chosen.fit:
        record(chosen.file, machine, chosen.seconds, chosen.each)
    saved = json.loads(chosen.file.read_text())
    for name in KERNELS:
        timings = [timing for timing in saved["timings"] if timing["kernel"] == name]
        costs, error = fit(name, timings, saved["cycle_seconds"])
        lost = [regret(timings, prices) for prices in (costs, KERNELS[name])]
        print(f"{name.upper()} = {costs}  # {len(timings)} timings, mean error {error:.0%}")
        print(f"  its choices take {lost[0]:.1%} longer than the best timed, today's {lost[1]:.1%}")


if __name__ == "__main__":
    main()
