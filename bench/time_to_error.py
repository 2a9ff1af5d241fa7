"""Test error against training time, dense and pruned: the figure at the top of the README.

    python bench/time_to_error.py                  # trains what --out lacks, times, draws

Each network is trained by `snip run`'s own loop over three seeds. The time of a curve is its number
of steps times the time of one step, which is measured here, all networks taking turns: wall-clock
seconds of a training include whatever else the machine did. The step is that of an ordinary loop.
The dense one is the faster of eager and channels last.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from cases import OPTIMIZERS, Case, pruned
from contest import BURST, settle
from loop import way
from record import RESULTS, surroundings
from rivals import dense_torch

import snip
from snip.common.files import read_json, write_json
from snip.common.timing import Work, best_times
from snip.experiments.table1 import CONV, CONV_TRAIN
from snip.reports.pictures import COLOURS
from snip.runs import RunConfig, run

SPARSITIES = (0.0, 0.9, 0.98, 0.99)
SEEDS = range(3)
EVALUATE_EVERY = 270  # steps: twice an epoch
NAME = "time-to-error"
FIGURE = RESULTS.parent / "docs" / f"{NAME}.png"

Row = dict[str, Any]


def config(sparsity: float, seed: int) -> RunConfig:
    """One training: as in `snip reproduce fig1`, but under the masks of its own weights."""
    train = replace(CONV_TRAIN, eval_every=EVALUATE_EVERY)
    return RunConfig(CONV, sparsity, train=train, seed=seed)


def trained(sparsity: float, out: Path) -> Row:
    """Curves of all seeds at one sparsity."""
    results = [run(config(sparsity, seed), out) for seed in SEEDS]
    histories = [result.history() for result in results]
    return {
        "sparsity": sparsity,
        "kept": results[0].kept,
        "total": results[0].total,
        "iteration": [line.iteration for line in histories[0]],
        "errors": [[line.test_error for line in history] for history in histories],
    }


def step_milliseconds(seconds: float) -> dict[float, float]:
    """Best time of an ordinary SGD step at each sparsity, all taking turns."""
    works: dict[tuple[float, str], Work] = {}
    for sparsity in SPARSITIES:
        model, batch, _ = pruned(Case(CONV, sparsity or 0.9, 100, (1, 28, 28)))
        if sparsity:
            networks = {"ours": (snip.accelerate(model, batch), batch[0])}
        else:
            dense = dense_torch(model, compiling=False)
            networks = {name: rival(model, batch[0]) for name, rival in dense.items()}
        for name, network in networks.items():
            works[sparsity, name] = way(network, OPTIMIZERS["SGD"], batch[1])[1]
    named = {f"{sparsity} {name}": work for (sparsity, name), work in works.items()}
    rounds = max(3, int(seconds / BURST))
    times = best_times(named, rounds=rounds, setup=settle, burst=BURST)
    best: dict[float, float] = {}
    for sparsity, name in works:
        milliseconds = 1e3 * times[f"{sparsity} {name}"]
        best[sparsity] = min(milliseconds, best.get(sparsity, milliseconds))
    return best


def last_error(row: Row) -> float:
    """Mean test error of the seeds at the end of training, in percent."""
    return 100 * statistics.mean(errors[-1] for errors in row["errors"])


def label_of(row: Row) -> str:
    name = f"{row['sparsity']:.0%} pruned" if row["sparsity"] else "dense"
    return f"{name}, {row['kept']:,} weights: {last_error(row):.2f}%"


def draw(record: Row, path: Path) -> None:
    """Mean error of the seeds against seconds of training, and their spread, a line per network."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(9.0, 4.4), dpi=150, facecolor="white", layout="constrained")
    axes = figure.subplots()
    for row, colour in zip(record["rows"], COLOURS, strict=False):
        seconds = [n * row["step_ms"] / 1e3 for n in row["iteration"]]
        errors = [[100 * e for e in column] for column in zip(*row["errors"], strict=True)]
        low, high = [min(e) for e in errors], [max(e) for e in errors]
        axes.fill_between(seconds, low, high, color=colour, alpha=0.15, linewidth=0)
        means = [sum(e) / len(e) for e in errors]
        axes.plot(seconds, means, color=colour, linewidth=2.2, label=label_of(row))
        axes.plot(seconds[-1], means[-1], "o", color=colour, markersize=7)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=12)
    axes.set_xlabel("training time, seconds", fontsize=13)
    axes.set_ylabel("test error, %", fontsize=13)
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=12, frameon=False)
    figure.savefig(path, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/time-to-error"), help="run folders")
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing each network, about")
    parser.add_argument("--train-only", action="store_true", help="time and draw nothing")
    parser.add_argument("--draw-only", action="store_true", help="draw what was measured before")
    options = parser.parse_args()
    path = RESULTS / f"{NAME}.json"
    if options.draw_only:
        draw(read_json(path), FIGURE)
        return
    rows = [trained(sparsity, options.out) for sparsity in SPARSITIES]
    if options.train_only:
        return
    times = step_milliseconds(options.seconds)
    for row in rows:
        row["step_ms"] = times[row["sparsity"]]
        print(f"{label_of(row)}; {row['step_ms']:.2f} ms a step")
    record = {"command": "python bench/time_to_error.py", "rows": rows, **surroundings()}
    write_json(path, record)
    draw(record, FIGURE)


if __name__ == "__main__":
    main()
