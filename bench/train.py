"""Whole training steps of pruned networks against dense torch at its best, in one run.

    python bench/train.py                        # all five networks, many minutes
    python bench/train.py lenet-300-100 lstm-b   # some
    python bench/train.py --no-compile           # without torch.compile

SparseProp takes part where it is installed (bench/rivals.py says how).
"""

from __future__ import annotations

import argparse
import warnings

import torch
from cases import CASES, Case, flop_bound, pruned, training_step
from contest import Contest, row
from rivals import Network, dense_torch, plain_copy, sparseprop

import snip
from snip.common.timing import Work

SECONDS = 12.0  # of measuring per network and way, about


def way(network: Network, labels: torch.Tensor) -> tuple[torch.Tensor, Work]:
    """Outputs before the first step, and the step."""
    model, images = network
    return model.train()(images).detach(), training_step(model, (images, labels))


def measure(case: Case, *, compiled: bool, seconds: float) -> str:
    """The row of one network."""
    model, batch, masks = pruned(case)
    images, labels = batch
    rivals = {**dense_torch(model.train(), compiling=compiled), "sparseprop": sparseprop}
    contest = Contest(plain_copy(model)(images).detach())
    for name, rival in rivals.items():
        contest.enter(name, lambda rival=rival: way(rival(model, images), labels))
    contest.enter("ours", lambda: way((snip.accelerate(model, batch), images), labels))
    remarks = [f"FLOP bound {flop_bound(masks):.1f}x"]
    return row(case, case.batch, contest.times(seconds), contest.faults, remarks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(case.model for case in CASES))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"training step, {torch.get_num_threads()} threads")
    for case in CASES:
        if case.model in options.models or not options.models:
            print(
                measure(case, compiled=not options.no_compile, seconds=options.seconds), flush=True
            )


if __name__ == "__main__":
    main()
