"""Does a FLOP budget buy more than a parameter budget: error, weights and step time at equal FLOPs.

python -m snip.experiments.budgets --model lenet-5-caffe --seeds 0 1 2   # prune, train, test
python -m snip.experiments.budgets --model lenet-5-caffe --time          # then, on a quiet machine
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from snip.common.console import complain, remark, show_table
from snip.common.device import set_up_torch
from snip.common.errors import InputError
from snip.common.figures import percent
from snip.common.files import read_json, write_json
from snip.common.places import exists
from snip.common.timing import best_times
from snip.data import load
from snip.engine.accelerate import accelerate
from snip.engine.choice import ENGINES
from snip.engine.fused.step import training_step
from snip.experiments.budget_arms import ARMS, SETTINGS, Arm, one_engine, plan
from snip.masks import Masks, empty_layers, versions
from snip.runs import RunConfig, RunResult, draw_network, prepare, run
from snip.runs.folder import REPORT
from snip.runs.result import environment
from snip.training.journal import MASKS
from snip.training.parts import data_for, make_optimizer, set_learning_rate
from snip.training.schedule import shortened

DENSE = "dense"  # the unpruned network in plain torch, timed beside the arms
Record = dict[str, Any]


def train_all(base: RunConfig, seeds: Sequence[int], root: Path, out: Path, command: str) -> Record:
    """Train every arm for every seed, except finished ones. Each run updates the result file."""
    dataset = load(base.dataset)
    base = replace(base, engine=_engine_in(out) or one_engine(base, dataset))
    kept = _timing_in(out, base)
    found: dict[Arm, list[Record]] = {arm: [] for arm in ARMS}
    for seed in seeds:
        for arm, config in plan(replace(base, seed=seed), dataset).items():
            remark(f"{base.model}, seed {seed}: {arm.name}, sparsity {config.sparsity:g}")
            found[arm].append(_row(run(config, root)))
            record = _record(base, seeds, found, command) | {"timing": kept}
            write_json(out, record)
    return record


def time_all(record: Record, root: Path, seconds: float, command: str) -> Record:
    """The record with times: a training step of each arm's accelerated network, taking turns."""
    seed = record["seeds"][0]
    base = RunConfig.from_dict({**record["run"], "seed": seed})
    configs = {
        arm["name"]: replace(base, sparsity=row["sparsity_asked"], budget=arm["budget"])
        for arm in record["arms"]
        for row in arm["runs"]
        if row["seed"] == seed
    }
    best = best_times(_steps(base, configs, root), rounds=3, seconds=seconds)
    timing = {
        "command": command,
        "seed": seed,
        "step_ms": {name: round(value * 1e3, 4) for name, value in best.items()},
        "versions": versions(),
        **environment(torch.device("cpu")),
    }
    return record | {"timing": timing}


def show(record: Record) -> None:
    """Print a line per arm: its FLOPs, the weights it keeps, its error and its step's time."""
    timing = record["timing"]
    times = timing["step_ms"] if timing else {}
    show_table(
        ("budget", "FLOPs left", "weights kept", "test error", "spread", "step ms"),
        [
            (
                arm["budget"],
                percent(arm["flops_left"]),
                f"{arm['kept']:,.0f}",
                percent(arm["test_error"]),
                "-" if arm["spread"] is None else percent(arm["spread"]),
                _ms(times, arm["name"]),
            )
            for arm in record["arms"]
        ]
        + ([(DENSE, "100%", f"{record['total']:,}", "-", "-", _ms(times, DENSE))] if times else []),
    )


def _ms(times: Mapping[str, float], name: str) -> str:
    return f"{times[name]:.2f}" if name in times else "-"


def _steps(
    base: RunConfig, configs: Mapping[str, RunConfig], root: Path
) -> dict[str, Callable[[], object]]:
    """One step of the trainer for the dense network and for every arm's accelerated one."""
    dataset = load(base.dataset)
    batch = next(iter(data_for(dataset, base.training).train))
    models = {DENSE: draw_network(base.model, base.dataset, initializer="vs", seed=base.seed)}
    for name, config in configs.items():
        pruned, _ = prepare(config, dataset, saved=root / config.folder_name / MASKS)
        models[name] = accelerate(pruned, batch)
    steps: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        optimizer = make_optimizer(model.train(), base.training)
        set_learning_rate(
            optimizer, 0.0
        )  # the work is the same, and training on one batch cannot diverge
        steps[name] = partial(training_step(model, optimizer), *batch)
    return steps


def _row(result: RunResult) -> Record:
    """One run, in the numbers that the arms are compared by."""
    return {
        "seed": result.config.seed,
        "sparsity_asked": result.sparsity_asked,
        "kept": result.kept,
        "total": result.total,
        "flops_left": read_json(result.folder / REPORT)["flops_ratio"],
        "empty_layers": empty_layers(Masks.load(result.folder / MASKS)),
        "test_error": result.test_error,
        "final_test_error": result.final_test_error,
        "valid_error": result.valid_error,
    }


def _record(
    base: RunConfig, seeds: Sequence[int], found: Mapping[Arm, list[Record]], command: str
) -> Record:
    setting = SETTINGS[base.model]
    rows = [row for arm in found.values() for row in arm]
    return {
        "command": command,
        "question": "at equal FLOPs, does budget='flops' lose less than the parameter budget?",
        "shares": "of the FLOPs that the parameter budget leaves at the run's sparsity",
        "error": "mean over the seeds; spread is the sample standard deviation",
        "schedule": setting.note if base.train == setting.train else "by the command's flags",
        "seeds": list(seeds),
        "run": _shared(base),
        "total": rows[0]["total"],
        "arms": [summary(arm, runs) for arm, runs in found.items() if runs],
        "versions": versions(),
        **environment(torch.device("cpu")),
    }


def summary(arm: Arm, runs: list[Record]) -> Record:
    """One arm over its seeds: means, and the spread of the error."""
    errors = [row["test_error"] for row in runs]
    return {
        "name": arm.name,
        "budget": arm.budget,
        "share": arm.share,
        "flops_left": statistics.mean(row["flops_left"] for row in runs),
        "kept": statistics.mean(row["kept"] for row in runs),
        "test_error": statistics.mean(errors),
        "spread": statistics.stdev(errors) if len(errors) > 1 else None,
        "runs": runs,
    }


def _shared(base: RunConfig) -> Record:
    """The configuration that all arms share, with the sparsity of the reference."""
    return {name: value for name, value in base.to_dict().items() if name not in ("seed", "budget")}


def _timing_in(out: Path, base: RunConfig) -> Record | None:
    """The times in the result file, to be kept. Refuses the file of another experiment."""
    if not exists(out):
        return None
    record = read_json(out)
    if record.get("run") != _shared(base):
        raise InputError(f"{out} holds another experiment: give --out, or delete it.")
    return record.get("timing")


def _engine_in(out: Path) -> str | None:
    """The engine of the arms that are trained already."""
    return read_json(out).get("run", {}).get("engine") if exists(out) else None


def _base(options: argparse.Namespace) -> RunConfig:
    setting = SETTINGS[options.model]
    train = setting.train if options.lr is None else replace(setting.train, lr=options.lr)
    if options.iterations is not None:
        train = shortened(train, options.iterations)
    sparsity = setting.sparsity if options.sparsity is None else options.sparsity
    return RunConfig(options.model, sparsity, engine=options.engine, train=train)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m snip.experiments.budgets", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--model", choices=SETTINGS, default="lenet-5-caffe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sparsity", type=float, help="of the parameter budget at share 1")
    parser.add_argument("--iterations", type=int, help="squeeze the schedule into these")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="one for all arms")
    parser.add_argument("--root", type=Path, default=Path("runs/budgets"), help="of run folders")
    parser.add_argument("--out", type=Path, help="default: results/budgets-MODEL.json")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--time", action="store_true", help="time the arms of a finished result")
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing per arm")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or time the experiment, write its file and print its table."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _options(arguments)
    out = options.out or Path("results") / f"budgets-{options.model}.json"
    command = shlex.join(["python", "-m", "snip.experiments.budgets", *arguments])
    try:
        set_up_torch(threads=options.threads, device="cpu")
        if options.time:
            record = time_all(read_json(out), options.root, options.seconds, command)
            write_json(out, record)
        else:
            record = train_all(_base(options), options.seeds, options.root, out, command)
    except InputError as error:
        complain(str(error))
        return 2
    show(record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
