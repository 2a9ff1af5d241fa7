"""Inference of pruned networks, at batch 1 and in bulk, against other runtimes, in one run.

    python bench/inference.py                    # all networks, batch 64 and 1
    python bench/inference.py vgg-like --batch 64
    python bench/inference.py --no-compile       # without torch.compile
    python bench/inference.py --bfloat16         # dense torch in bfloat16 as well

SparseProp, ONNX Runtime and OpenVINO take part where they are installed (bench/rivals.py says
how); the latter two run the masked dense network. "shrunk torch" is `snip.shrink` in plain torch.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from cases import CASES, Case, flop_bound, pruned
from contest import Contest, record, row
from record import keep
from rivals import RUNTIMES, Network, dense_bfloat16, dense_torch, plain_copy, sparseprop
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


def measure(
    case: Case, batch: int, *, compiled: bool, bfloat16: bool, seconds: float
) -> tuple[str, dict[str, Any]]:
    """The row of one network and batch size, as text and as data."""
    model, (images, _), masks = pruned(case, batch)
    dense = dense_torch(model.eval(), compiling=compiled)
    dense |= dense_bfloat16(model) if bfloat16 else {}
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
    text = row(case, batch, times, contest.faults, [f"FLOP bound {flop_bound(masks):.1f}x"])
    parameters = sum(p.numel() for p in model.parameters())
    return text, record(case, batch, times, contest.faults, parameters=parameters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(case.model for case in CASES))
    parser.add_argument("--batch", type=int, nargs="*", default=[64, 1])
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--bfloat16", action="store_true", help="dense torch in bfloat16 as well")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=Path, help="a JSON file for the rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"inference, {torch.get_num_threads()} threads")
    rows = []
    settings = {"compiled": not options.no_compile, "bfloat16": options.bfloat16}
    for case in CASES:
        for batch in options.batch if case.model in options.models or not options.models else ():
            text, data = measure(case, batch, seconds=options.seconds, **settings)
            print(text, flush=True)
            rows.append(data)
    if options.out:
        keep(options.out, rows)


if __name__ == "__main__":
    main()
