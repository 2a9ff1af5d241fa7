"""What pruning costs: time over one forward+backward, and extra peak memory per parameter.

    python bench/prune.py                        # WRN-22-8, 128 pictures: a few minutes
    python bench/prune.py --model vgg-11-bn      # 129M weights, 16 pictures of 64 x 64: two minutes
    python bench/prune.py --model gpt-2          # 124M, from configuration, 4 texts of 128 tokens

`snip.prune` stands beside the usual way (every score copied into one flat tensor, `torch.topk`).
Peak memory is the resident set of a process of its own, beside one that only makes a training
step's forward and backward pass; with few samples per batch the activations hide nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from cases import times_as_drawn
from torch import nn

import snip
from snip.models import build

Batch = tuple[torch.Tensor, torch.Tensor]
# Samples to score by: few where the weights are many, so that the pass over them is the cost.
BATCHES = {"vgg-11-bn": 16, "gpt-2": 4}


def forward_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Cross-entropy; of a language model, whose targets are its inputs, that which it returns."""
    inputs, targets = batch
    if inputs is targets:
        return model(input_ids=inputs, labels=inputs).loss
    return F.cross_entropy(model(inputs), targets)


def step(model: nn.Module, batch: Batch) -> None:
    """A training step's forward and backward pass."""
    forward_loss(model, batch).backward()
    model.zero_grad()


def prune(model: nn.Module, batch: Batch) -> None:
    """Ours."""
    snip.prune(model, batch, sparsity=0.95, loss_fn=forward_loss)
    snip.release(model)


def concatenate(model: nn.Module, batch: Batch) -> None:
    """The usual way: one flat copy of all scores, top-k, threshold."""
    weights = list(snip.prunable_parameters(model).values())
    gradients = torch.autograd.grad(forward_loss(model, batch), weights)
    scores = [(w * g).abs() for w, g in zip(weights, gradients, strict=True)]
    flat = torch.cat([score.flatten() for score in scores])
    threshold = torch.topk(flat, round(flat.numel() * 0.05)).values[-1]
    with torch.no_grad():
        for weight, score in zip(weights, scores, strict=True):
            weight.mul_((score >= threshold).to(weight.dtype))


WAYS = {"step": step, "snip.prune": prune, "concatenate + topk": concatenate}


def setting(name: str, batch: int) -> tuple[nn.Module, Batch]:
    torch.manual_seed(0)
    if name == "gpt-2":
        from libraries import transformers

        tokens = torch.randint(0, 50257, (batch, 128))
        return transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval(), (tokens, tokens)
    if name == "vgg-11-bn":
        from libraries import torchvision

        images, labels = torch.randn(batch, 3, 64, 64), torch.randint(0, 10, (batch,))
        # As its layers draw themselves: torchvision would draw all 129M weights a second time.
        model = torchvision.models.vgg11_bn(num_classes=10, init_weights=False)
        return model.eval(), (images, labels)
    model = build(name)
    shape = (1, 28, 28) if name.startswith(("lenet", "lstm", "gru")) else (3, 32, 32)
    return model.eval(), (torch.randn(batch, *shape), torch.randint(0, 10, (batch,)))


def own_peak() -> int:
    """Peak resident bytes of this process."""
    # Not getrusage: Linux starts a child's ru_maxrss at its parent's, which timed things before.
    rows = Path("/proc/self/status").read_text().splitlines()
    line = next(row for row in rows if row.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def peak_bytes(name: str, batch: int) -> dict[str, int]:
    """Peak resident memory of processes that do one thing each."""

    def alone(way: str) -> int:
        command = [sys.executable, __file__, "--model", name, "--batch", str(batch), "--only", way]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    # Two at a time: they are not timed, and most of their time goes into imports and the draw.
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(WAYS, pool.map(alone, WAYS), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="wrn-22-8")
    parser.add_argument("--batch", type=int, help="128, of the large ones 16 and 4, unless given")
    parser.add_argument("--memory-batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", choices=WAYS, help="one way, once; prints its peak memory")
    options = parser.parse_args()
    samples = options.batch or BATCHES.get(options.model, 128)
    model, batch = setting(options.model, samples)
    if options.only:
        WAYS[options.only](model, batch)
        print(own_peak())
        return
    total = sum(p.numel() for p in snip.prunable_parameters(model).values())
    shape = " x ".join(str(size) for size in batch[0].shape)
    print(f"{options.model} on {shape}, {total:,} connections, {torch.get_num_threads()} threads")
    for way in list(WAYS)[1:]:
        # Each takes turns with the step alone. With all three in turn, the one that frees gigabytes
        # slows what follows: in one run prune and step went from 1.15 and 0.72 s to 1.60 and 0.84.
        turns = {name: partial(WAYS[name], model, batch) for name in ("step", way)}
        times = times_as_drawn(turns, model, rounds=options.rounds)
        ratio = times[way] / times["step"]
        print(f"  time of {way:20} {ratio:6.3f} x one forward+backward (batch {samples})")
    for size in (options.memory_batch, samples):
        peaks = peak_bytes(options.model, size)
        for way in list(WAYS)[1:]:
            extra = (peaks[way] - peaks["step"]) / total
            print(
                f"  extra peak memory of {way:20} {extra:6.2f} bytes per parameter (batch {size})"
            )


if __name__ == "__main__":
    main()
