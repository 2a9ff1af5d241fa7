"""Inference of pruned networks, at batch 1 and in bulk, against dense runtimes, in one run.

    python bench/inference.py                    # all networks, batch 64 and 1
    python bench/inference.py vgg-like --batch 64

Beside dense torch stand ONNX Runtime and OpenVINO (`pip install onnxruntime openvino`) where they
are installed; they run the masked dense network. "shrunk" is `snip.shrink` in plain torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from networks import CASES, Case, dense_copies, flop_bound, pruned
from timing import best_times
from torch import nn

import snip

SECONDS = 6.0


def forward(model: nn.Module, images: torch.Tensor) -> Callable[[], object]:
    """One forward pass without gradients."""
    model.eval()

    def work() -> object:
        with torch.inference_mode():
            return model(images)

    return work


def onnx_file(model: nn.Module, images: torch.Tensor, folder: str) -> Path:
    """The masked dense network as ONNX, with its batch size fixed for the runtimes' sake."""
    path = Path(folder) / "model.onnx"
    snip.export_onnx(model, images, path, any_batch_size=False)
    return path


def onnx_runtime(path: Path, images: torch.Tensor) -> Callable[[], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: images.numpy()}
    return lambda: session.run(None, feed)


def openvino(path: Path, images: torch.Tensor) -> Callable[[], object]:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(path, "CPU", settings)
    return lambda: compiled(images.numpy())


RUNTIMES = {"onnxruntime": onnx_runtime, "openvino": openvino}


def measure(case: Case, batch: int, seconds: float) -> tuple[dict[str, float], float]:
    """Seconds per forward pass of each way, and the mask's FLOP bound."""
    model, (images, _), masks = pruned(case, batch)
    model.eval()
    ways: dict[str, Callable[[], object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (dense, data) in dense_copies(model, (images, images), compiled=False).items():
            ways[f"torch {name}"] = forward(dense, data[0])
        path = onnx_file(model, images, folder)
        for name, start in RUNTIMES.items():
            if importlib.util.find_spec(name):
                ways[name] = start(path, images)
        ways["shrunk torch"] = forward(snip.shrink(model, images), images)
        ways["ours"] = forward(snip.accelerate(model, images), images)
        once = best_times(ways, rounds=1)
        rounds = max(3, min(300, int(seconds / sum(once.values()))))
        return best_times(ways, rounds=rounds), flop_bound(masks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(case.model for case in CASES))
    parser.add_argument("--batch", type=int, nargs="*", default=[64, 1])
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"inference, {torch.get_num_threads()} threads; ratios: each way's time / ours")
    for case in CASES:
        for batch in options.batch if case.model in options.models or not options.models else ():
            times, bound = measure(case, batch, options.seconds)
            ours = times.pop("ours")
            ways = ", ".join(f"{way} {seconds / ours:.2f}x" for way, seconds in times.items())
            print(
                f"  {case.model:14} {case.sparsity:.0%} batch {batch}: ours {ours * 1e3:.2f} ms; "
                f"{ways} (FLOP bound {bound:.1f}x)",
                flush=True,
            )


if __name__ == "__main__":
    main()
