"""What holding the zeros costs: a training step of a pruned network over the same step released.

    python bench/hold.py                         # four networks, SGD and AdamW: a few minutes
    python bench/hold.py tied --sparsity 0.9 --thread-time --rounds 50

One network, whose masks are applied and released in turns: only the holding differs. A name is
one of Snip's networks or of the zoo's, which stay dense here: `tied` is one that
`snip.accelerate` hands back as it is. `--thread-time` counts the work of one thread, for a machine
that others use too.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import torch
from cases import OPTIMIZERS, ordinary_step
from torch import nn

import snip
from snip.common.timing import Clock, Work, best_times
from snip.models import MODELS, build
from snip.scoring.batches import LossFn, cross_entropy

NETWORKS = {"lenet-5-caffe": 0.99, "lenet-300-100": 0.95, "tied": 0.98, "resnet-18": 0.95}


def setting(name: str) -> tuple[nn.Module, Any, LossFn]:
    """A network of Snip's or of the zoo, its batch and its loss."""
    torch.manual_seed(0)
    if name in MODELS:
        batch = torch.randn(100, 1, 28, 28), torch.randint(0, 10, (100,))
        return build(name, seed=0), batch, cross_entropy
    from zoo_networks import ZOO

    network = next(network for network in ZOO if network.name == name)
    return network.build(), network.batch(), network.loss_fn or cross_entropy


def paired(one: Work, other: Work, work: Work, *, rounds: int, **by: Clock) -> tuple[float, float]:
    """Median over rounds of the time of `work` after `one` over that after `other`, and the latter.

    This shows differences of a few per cent: both run on the same tensors, one shortly after the
    other. The order is swapped each round, and `work` runs once untimed after each change.
    """
    ratios, released = [], []
    for turn in range(rounds):
        times = {}
        for change in (one, other) if turn % 2 else (other, one):
            change()
            times[change] = best_times({"": work}, rounds=3, **by)[""]
        ratios.append(times[one] / times[other])
        released.append(times[other])
    return sorted(ratios)[rounds // 2], sorted(released)[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(NETWORKS))
    parser.add_argument("--sparsity", type=float, help="instead of each network's own")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--thread-time", action="store_true", help="one thread, by its own clock")
    options = parser.parse_args()
    if options.thread_time:
        torch.set_num_threads(1)
    by: dict[str, Clock] = {"clock": time.thread_time} if options.thread_time else {}
    for name in options.names:
        sparsity = options.sparsity or NETWORKS.get(name, 0.95)
        model, batch, loss = setting(name)
        masks = snip.prune(model.train(), batch, sparsity=sparsity, loss_fn=loss)
        for kind, make in OPTIMIZERS.items():
            ratio, released = paired(
                partial(masks.apply, model),
                partial(snip.release, model),
                ordinary_step(partial(loss, model, batch), make(model)),
                rounds=options.rounds,
                **by,
            )
            print(
                f"{name} {sparsity:.0%}, {kind}, {torch.get_num_threads()} threads: a held step "
                f"takes {ratio:.3f} x the dense step, {(ratio - 1) * released * 1e6:+.0f} us "
                f"(median of {options.rounds} pairs)",
                flush=True,
            )


if __name__ == "__main__":
    main()
