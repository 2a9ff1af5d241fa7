"""Inference of pruned networks, at batch 1 and in bulk, against other runtimes, in one run.

    python bench/inference.py                    # all networks, batch 64 and 1
    python bench/inference.py vgg-like --batch 64
    python bench/inference.py --no-compile       # without torch.compile

SparseProp, ONNX Runtime and OpenVINO take part where they are installed (bench/rivals.py says
how); the latter two run the masked dense network. "shrunk torch" is `snip.shrink` in plain torch.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import torch
from cases import CASES, Case, flop_bound, pruned
from contest import Contest, row
from rivals import RUNTIMES, Network, dense_torch, plain_copy, sparseprop
from torch import Tensor

import snip
from snip.common.timing import Work

SECONDS = 6.0  # of measuring per network and way, about


def forward(network: Network) -> Work:
    """One forward pass without gradients."""
    model, images = network
    model.eval()

    def work() -> object:
        with torch.inference_mode():
            return model(images)

    return work


def way(work: Work) -> tuple[Tensor, Work]:
    return torch.as_tensor(work()).clone(), work


def measure(case: Case, batch: int, *, compiled: bool, seconds: float) -> str:
    """The row of one network and batch size."""
    model, (images, _), masks = pruned(case, batch)
    dense = dense_torch(model.eval(), compiling=compiled)
    contest = Contest(torch.as_tensor(forward((plain_copy(model), images))()).clone())
    for name, rival in {**dense, "sparseprop": sparseprop}.items():
        contest.enter(name, lambda rival=rival: way(forward(rival(model, images))))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        snip.export_onnx(model, images, path, any_batch_size=False)
        for name, start in RUNTIMES.items():
            contest.enter(name, lambda start=start: way(start(path, images)))
        contest.enter("shrunk torch", lambda: way(forward((snip.shrink(model, images), images))))
        contest.enter("ours", lambda: way(forward((snip.accelerate(model, images), images))))
        times = contest.times(seconds)
    return row(case, batch, times, contest.faults, [f"FLOP bound {flop_bound(masks):.1f}x"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(case.model for case in CASES))
    parser.add_argument("--batch", type=int, nargs="*", default=[64, 1])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"inference, {torch.get_num_threads()} threads")
    for case in CASES:
        for batch in options.batch if case.model in options.models or not options.models else ():
            compiled = not options.no_compile
            print(measure(case, batch, compiled=compiled, seconds=options.seconds), flush=True)


if __name__ == "__main__":
    main()
