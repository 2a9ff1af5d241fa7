"""The loop that users have (loss, backward, optimizer.step) against dense torch, in one run.

    python bench/loop.py                             # all networks of cases.py, many minutes
    python bench/loop.py lenet-300-100 --seconds 4   # some
    python bench/loop.py --bfloat16                  # dense torch under autocast as well

All ways call their optimiser alike; the accelerated network takes no `snip.training_step`. What
torch's own part of the loop takes is timed beside them, around a node that computes nothing: one in
Python, with torch's own step. Ours may be in C++ and takes that step itself: it is no bound of it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from cases import CASES, OPTIMIZERS, SGD, Batch, Case, Optimizer, flop_bound, ordinary_step, pruned
from contest import DENSE, Contest, record, row
from record import keep
from rivals import Network, dense_bfloat16, dense_torch, plain_copy
from torch import nn

import snip
from snip.common.timing import Work
from snip.scoring.batches import cross_entropy

SECONDS = 4.0  # of measuring per network, optimiser and way, about
EMPTY = "empty node"
ALL_OPTIMIZERS: dict[str, Optimizer] = {
    **OPTIMIZERS,
    "SGD(fused=True)": lambda model: torch.optim.SGD(model.parameters(), **SGD, fused=True),
    "AdamW(fused=True)": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
}


def way(network: Network, optimizer: Optimizer, labels: torch.Tensor) -> tuple[torch.Tensor, Work]:
    """Outputs before the first step, and the step."""
    model, images = network
    outputs = model.train()(images).detach()
    step = ordinary_step(lambda: cross_entropy(model, (images, labels)), optimizer(model))
    return outputs, step


class EmptyNode(torch.autograd.Function):
    """Outputs and gradients that are there already: what any network costs that is one node."""

    @staticmethod
    def forward(ctx: Any, made: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        outputs, *ctx.gradients = made
        return outputs.detach()  # of every step's own graph

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> Any:
        return None, *ctx.gradients


def empty_loop(model: nn.Module, optimizer: Optimizer, outputs: torch.Tensor, labels: Any) -> Work:
    """The loop around an empty node with as many and as large parameters."""
    parameters = nn.ParameterList(p.detach().clone() for p in model.parameters())
    made = [outputs, *map(torch.zeros_like, parameters)]
    return ordinary_step(
        lambda: F.cross_entropy(EmptyNode.apply(made, *parameters), labels), optimizer(parameters)
    )


def measure(
    case: Case, *, seconds: float, bfloat16: bool, optimizers: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of one network, one per optimiser, as text and as data."""
    model, batch, masks = pruned(case)
    parameters = sum(p.numel() for p in model.parameters())
    expected = plain_copy(model.train())(batch[0]).detach()
    for name in optimizers:
        contest = contestants(model, batch, ALL_OPTIMIZERS[name], expected, bfloat16=bfloat16)
        times = contest.times(seconds)
        empty = times.pop(EMPTY)
        loop = min(times[way] for way in DENSE if way in times) / empty
        remarks = [
            *(name, f"FLOP bound {flop_bound(masks):.1f}x"),
            f"torch's own loop around an empty node {empty * 1e3:.2f} ms, dense / that {loop:.1f}x",
        ]
        text = row(case, case.batch, times, contest.faults, remarks)
        facts = {"parameters": parameters, "optimizer": name, "empty": empty}
        yield text, record(case, case.batch, times, contest.faults, **facts)


def contestants(
    model: nn.Module,
    batch: Batch,
    optimizer: Optimizer,
    expected: torch.Tensor,
    *,
    bfloat16: bool,
) -> Contest:
    """Dense torch, ours and the empty node, each with parameters and an optimiser of its own."""
    images, labels = batch
    contest = Contest(expected)
    rivals = dense_torch(model, compiling=False) | (dense_bfloat16(model) if bfloat16 else {})
    for name, rival in rivals.items():
        contest.enter(name, lambda rival=rival: way(rival(model, images), optimizer, labels))
    fast = snip.accelerate(model, batch)
    contest.enter("ours", lambda: way((fast, images), optimizer, labels))
    contest.works[EMPTY] = empty_loop(fast, optimizer, expected, labels)
    return contest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(case.model for case in CASES))
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="per way, by default %(default)s"
    )
    parser.add_argument("--bfloat16", action="store_true", help="dense torch in bfloat16 as well")
    parser.add_argument(
        "--optimizer", nargs="*", default=list(ALL_OPTIMIZERS), dest="optimizers",
        choices=list(ALL_OPTIMIZERS), help="by default all",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    options = parser.parse_args()
    unknown = set(options.models) - {case.model for case in CASES}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; the networks are in --help")
    warnings.simplefilter("ignore")
    print(f"ordinary loop, {torch.get_num_threads()} threads")
    rows = []
    settings = {name: getattr(options, name) for name in ("seconds", "bfloat16", "optimizers")}
    for case in CASES:
        if case.model in options.models or not options.models:
            for text, data in measure(case, **settings):
                print(text, flush=True)
                rows.append(data)
    if options.out:
        keep(options.out, rows)


if __name__ == "__main__":
    main()
