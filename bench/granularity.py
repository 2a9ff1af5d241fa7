"""What each granularity costs in error and buys in time, on LeNet-5-Caffe and a small VGG.

    OMP_NUM_THREADS=1 python bench/record.py granularity-errors python bench/granularity.py errors
    python bench/record.py granularity-times python bench/granularity.py times  # a quiet machine

`errors` trains (hours on one thread; other work beside it changes nothing but the time). Its runs
lie in runs/granularity, so that it resumes. `times` takes minutes. MNIST is inside, CIFAR-10 is
found as `snip data` says. Both print one line of JSON per network, sparsity and granularity.

Times are those of a batch of 100, over dense torch (the faster of eager and channels last): of the
network that `snip.shrink` leaves of whole units, in torch, and of `snip.accelerate` for the rest,
where "auto" may find that nothing is gained. 2:4 is for GPUs and gains little here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from cases import Batch, training_step
from contest import Contest
from defaults import VGG_11_HALF, vgg
from inference import forward
from rivals import dense_torch, plain_copy
from torch import nn

import snip
from snip.common.timing import Work
from snip.data import load
from snip.runs import RunConfig, prepare, run
from snip.training import TrainConfig, shortened

RUNS = Path("runs/granularity")
PATTERN = "2:4"  # has a sparsity of its own
GRANULARITIES = ("element", "4x4", "channel", PATTERN)
HALF = 0.5
DROPS = {"iterations": 100, "lr_drops": (60, 85)}  # in percent of the training


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and where it is measured."""

    model: str
    dataset: str
    train: TrainConfig
    steps: int
    sparsities: tuple[float, ...]


# The dense LeNet-5-Caffe diverges at the paper's rate of 0.1: all are trained at a lower one.
CASES = {
    "lenet-5-caffe": Case(
        "lenet-5-caffe", "mnist", TrainConfig(lr=0.02, **DROPS), 10_000, (HALF, 0.9, 0.98)
    ),
    "small-vgg": Case(
        "granularity:small_vgg", "cifar-10", TrainConfig(lr=0.05, **DROPS), 3_000, (HALF, 0.9, 0.95)
    ),
}


def small_vgg() -> nn.Module:
    """VGG-11 of half the width, with batch norm: 2.3 million connections."""
    return vgg(VGG_11_HALF)


def configs(case: Case, steps: int, seed: int) -> Iterator[RunConfig]:
    """The runs of one seed, the dense one first."""
    train = shortened(case.train, steps)
    chosen = [(0.0, "element")]
    for sparsity in case.sparsities:
        given = [g for g in GRANULARITIES if g != PATTERN or sparsity == HALF]
        chosen += [(sparsity, granularity) for granularity in given]
    for sparsity, granularity in chosen:
        yield RunConfig(
            case.model, sparsity, case.dataset, granularity=granularity, seed=seed, train=train
        )


def errors(case: Case, steps: int, seeds: list[int]) -> Iterator[dict[str, object]]:
    """The test errors of all seeds, per sparsity and granularity."""
    for same in zip(*(configs(case, steps, seed) for seed in seeds), strict=True):
        results = [run(config, RUNS, progress=False) for config in same]
        found = [100 * result.test_error for result in results]
        yield {
            "sparsity": same[0].sparsity,
            "granularity": same[0].granularity if same[0].sparsity else "dense",
            "kept": [result.kept for result in results],
            "iterations": steps,
            "test errors %": [round(error, 3) for error in found],
            "mean": round(statistics.mean(found), 3),
            "seconds": round(sum(result.seconds for result in results)),
        }


def times(case: Case, seconds: float) -> Iterator[dict[str, object]]:
    """The times of one batch, per sparsity and granularity; all ways take turns."""
    dataset = load(case.dataset)
    batch = next(iter(dataset.training_batches(100)))
    for config in configs(case, case.steps, seed=0):
        if not config.sparsity:
            continue
        model, masks = prepare(config, dataset)
        assert masks is not None
        found = {
            "sparsity": config.sparsity, "granularity": config.granularity, "kept": masks.kept
        }  # fmt: skip
        for name, start in (("inference", _inference), ("step", _step)):
            found |= _compared(name, model, config, batch, start, seconds)
        yield found


def _compared(
    name: str,
    model: nn.Module,
    config: RunConfig,
    batch: Batch,
    start: Callable[[nn.Module, Batch], Work],
    seconds: float,
) -> dict[str, object]:
    """Milliseconds of dense torch and of the pruned network, and the one over the other."""
    model.train(name == "step")
    images, labels = batch
    contest = Contest(plain_copy(model)(images).detach())

    def enter(whose: str, chosen: nn.Module, given: torch.Tensor) -> None:
        outputs = chosen(given).detach()
        contest.enter(whose, lambda: (outputs, start(chosen, (given, labels))))

    for way, rival in dense_torch(model, compiling=False).items():
        enter(f"dense {way}", *rival(model, images))
    if config.granularity == "channel":
        small = snip.shrink(model, images)
        for way, rival in dense_torch(small, compiling=False).items():
            enter(f"ours {way}", *rival(small, images))
    else:
        enter("ours", snip.accelerate(model, batch), images)
    took = contest.times(seconds)
    dense, pruned = (
        min(time for whose, time in took.items() if whose.startswith(kind))
        for kind in ("dense", "ours")
    )
    return {
        f"{name} dense ms": round(1e3 * dense, 3),
        f"{name} ms": round(1e3 * pruned, 3),
        f"{name} speedup": round(dense / pruned, 2),
    }


def _inference(model: nn.Module, batch: Batch) -> Work:
    return forward((model, batch[0]))


def _step(model: nn.Module, batch: Batch) -> Work:
    return training_step(model, batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("errors", "times"))
    parser.add_argument("networks", nargs="*", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="of training; by default 10,000 and 3,000")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring per way, about")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, case in CASES.items():
        if name not in options.networks and options.networks:
            continue
        trained = errors(case, options.steps or case.steps, options.seeds)
        for found in trained if options.what == "errors" else times(case, options.seconds):
            print(json.dumps({"network": name, **found}), flush=True)


if __name__ == "__main__":
    main()
