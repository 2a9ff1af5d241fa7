"""Count the function calls, files and changes of package that a few ordinary tasks walk through.

    python tools/walk.py                    # all journeys: half a minute
    python tools/walk.py prune report       # some
    python tools/walk.py prune --json       # numbers for a program

Only calls of Snip's own functions in the main thread count, generators and comprehensions
included. A call changes the package if the call before it was in another one. First imports are
left out, except in the commands. `accelerate` and the accelerated run measure which layers are
faster sparse, so their numbers depend on the machine.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from tree import module_name, package_of

import snip
from snip.models import build

SOURCE = Path(snip.__file__).parents[1]
COLUMNS = ("calls", "files", "packages", "changes")
RUN = ("run", "--model", "lenet-300-100", "--sparsity", "0.95", "--iterations", "40")
Work = Callable[[], object]


@dataclass(frozen=True)
class Walk:
    """Counts of one journey."""

    calls: int
    files: int
    packages: int
    changes: int  # of package, from one call to the next
    most: dict[str, int]  # calls of the functions that are called most


def walked(work: Work, source: Path = SOURCE) -> Walk:
    """Do the work and count what it calls below `source`."""
    modules: dict[str, str] = {}
    functions: Counter[str] = Counter()
    changes, last = 0, ""

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal changes, last
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(f"{source}{os.sep}"):
            return
        if path not in modules:
            modules[path] = module_name(Path(path), source)
        functions[f"{modules[path]}:{frame.f_code.co_name}"] += 1
        package = package_of(modules[path])
        changes += last not in ("", package)
        last = package

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    packages = {package_of(module) for module in modules.values()}
    calls, most = functions.total(), dict(functions.most_common(4))
    return Walk(calls, len(modules), len(packages), changes, most)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """One batch of the shape of MNIST, always the same."""
    torch.manual_seed(0)
    return torch.randn(100, 1, 28, 28), torch.randint(0, 10, (100,))


def pruned() -> nn.Module:
    """LeNet-300-100 with masks, for which all that pruning imports was imported."""
    model = build("lenet-300-100", seed=0)
    snip.prune(model, batch(), sparsity=0.95)
    return model


def prune() -> Work:
    pruned()
    model, data = build("lenet-300-100", seed=0), batch()
    return lambda: snip.prune(model, data, sparsity=0.95)


def prune_and_report() -> Work:
    pruned()
    model, data = build("lenet-5-caffe", seed=0), batch()
    return lambda: snip.report(model, snip.prune(model, data, sparsity=0.95))


def accelerate() -> Work:
    model, data = pruned(), batch()
    return lambda: snip.accelerate(model, data)


def accelerated_step() -> Work:
    """The third step of an ordinary loop: the first two settle how the others run."""
    inputs, labels = batch()
    fast = snip.accelerate(pruned(), (inputs, labels))
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(fast(inputs), labels).backward()
        optimizer.step()

    step()
    step()
    return step


def command(*words: str) -> Work:
    """A command of `snip`, whose output goes nowhere."""
    from snip.cli import main

    def work() -> None:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as complaints:
            code = main(words)
        if code:
            raise RuntimeError(f"snip {' '.join(words)}: {complaints.getvalue()}")

    return work


# What each journey is, and a function that makes it ready and returns the work to walk.
JOURNEYS: dict[str, tuple[str, Callable[[], Work]]] = {
    "prune": ("prune LeNet-300-100", prune),
    "report": ("prune and report LeNet-5-Caffe", prune_and_report),
    "accelerate": ("accelerate LeNet-300-100", accelerate),
    "step": ("ordinary accelerated step", accelerated_step),
    "run-dense": ("snip run --engine dense, 40 steps", lambda: command(*RUN, "--engine", "dense")),
    "run": ("snip run, 40 steps", lambda: command(*RUN)),
    "reproduce": (
        "snip reproduce table1 --dry-run",
        lambda: command("reproduce", "table1", "--dry-run"),
    ),
}


@contextmanager
def empty_folder() -> Iterator[None]:
    """Work in a new folder with an empty cache of timings, and return."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SNIP_CACHE"] = folder
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            del os.environ["SNIP_CACHE"]


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("journeys", nargs="*", metavar="journey", help=", ".join(JOURNEYS))
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args(given)
    if unknown := set(options.journeys) - set(JOURNEYS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(JOURNEYS)}")
    if not options.json:
        print(f"{'':34}" + "".join(f"{name:>10}" for name in COLUMNS) + "   called most")
    walks = {}
    for name in options.journeys or JOURNEYS:
        title, make_ready = JOURNEYS[name]
        with warnings.catch_warnings(), empty_folder():
            warnings.simplefilter("ignore")
            walks[name] = walk = walked(make_ready())
        if not options.json:
            numbers = "".join(f"{getattr(walk, column):>10,}" for column in COLUMNS)
            most = ", ".join(f"{function} {count:,}" for function, count in walk.most.items())
            print(f"{title:34}{numbers}   {most}", flush=True)
    if options.json:
        print(json.dumps({name: asdict(walk) for name, walk in walks.items()}, indent=1))


if __name__ == "__main__":
    main()
