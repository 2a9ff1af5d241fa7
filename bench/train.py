"""Whole training steps of pruned networks against dense torch at its best, in one run.

python bench/train.py                        # all five networks, several minutes
python bench/train.py lenet-300-100 lstm-b   # some
python bench/train.py --no-compile           # without torch.compile
"""

from __future__ import annotations

import argparse

import torch
from networks import CASES, Case, dense_copies, flop_bound, pruned, training_step
from timing import best_times

import snip

SECONDS = 12.0  # of measuring per network and way, about


def measure(case: Case, *, compiled: bool, seconds: float) -> tuple[dict[str, float], float]:
    """Seconds per step of each way, and the mask's FLOP bound."""
    model, batch, masks = pruned(case)
    ways = {
        name: training_step(network, data)
        for name, (network, data) in dense_copies(model, batch, compiled=compiled).items()
    }
    ways["ours"] = training_step(snip.accelerate(model, batch), batch)
    once = best_times(ways, rounds=1, warmup=1)
    rounds = max(3, min(400, int(seconds / max(once.values()))))
    return best_times(ways, rounds=rounds), flop_bound(masks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(case.model for case in CASES))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    print(f"training step, {torch.get_num_threads()} threads; ratios: best dense / ours")
    for case in CASES:
        if options.models and case.model not in options.models:
            continue
        times, bound = measure(case, compiled=not options.no_compile, seconds=options.seconds)
        ours = times.pop("ours")
        best = min(times, key=lambda way: times[way])
        ways = ", ".join(f"{way} {seconds * 1e3:.2f}" for way, seconds in times.items())
        print(
            f"  {case.model:14} {case.sparsity:.0%} batch {case.batch}: {times[best] / ours:5.2f}x "
            f"(asked {case.at_least}x, aim {case.aim}x; FLOP bound {bound:.1f}x) "
            f"ours {ours * 1e3:.2f} ms; {ways} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
