"""Accuracy of networks pruned by the defaults of `snip.prune` and the authors' way, trained alike.

    python bench/defaults_train.py                     # an hour on one thread
    python bench/defaults_train.py vgg-11-bn-half-16px --seeds 0 1 2 --steps 1000

Short trainings on CIFAR-10 (SNIP_DATA), most of them on pictures of half the size, as PyTorch and
the libraries draw the networks: only to compare the masks with each other. The last setting asks
whether biases that start at zero are missed.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from defaults import SETTINGS, remembered, vgg
from libraries import timm, torchvision
from torch import nn
from zoo_networks import CLASSES

import snip
from snip.data import load
from snip.models import IMAGES, MODELS

BATCH, TEST = 64, 4000
AUTHORS, DEFAULT, KEPT = "authors", "default", "biases kept"
KINDS = {**SETTINGS, KEPT: {"biases": "keep"}}


@dataclass(frozen=True)
class Case:
    """A network, how it is trained, and the settings that are compared on it."""

    build: Callable[[], nn.Module]
    sparsity: float
    size: int  # of the pictures
    lr: float
    optimizer: Callable[..., torch.optim.Optimizer]
    settings: tuple[str, ...] = (AUTHORS, DEFAULT)


SGD = partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4)
ADAMW = partial(torch.optim.AdamW, weight_decay=0.05)
VIT = {"img_size": 16, "patch_size": 4, "embed_dim": 128, "depth": 4, "num_heads": 4}
CASES = {
    "vgg-11-bn-half-16px": Case(
        lambda: vgg("32 M 64 M 128 128 M 256 256 256 256 M"), 0.95, 16, 0.05, SGD,
        (AUTHORS, DEFAULT, KEPT),
    ),
    "mobilenet-v2": Case(
        lambda: torchvision.models.mobilenet_v2(num_classes=CLASSES), 0.95, 32, 0.05, SGD
    ),
    "resnet-18": Case(
        lambda: timm.create_model("resnet18", num_classes=CLASSES), 0.98, 32, 0.05, SGD
    ),
    "vit": Case(
        lambda: timm.models.VisionTransformer(num_classes=CLASSES, **VIT), 0.95, 16, 1e-3, ADAMW,
        (DEFAULT, KEPT),
    ),
    "resnet-20": Case(
        lambda: MODELS["resnet-20"].builder(IMAGES["cifar-10"]), 0.95, 16, 0.1, SGD
    ),
}  # fmt: skip


def accuracy(case: Case, settings: dict[str, Any], seed: int, steps: int) -> dict[str, float]:
    """Prune and train once; the share of test pictures that is told right."""
    data = load("cifar-10")
    torch.manual_seed(seed)
    model = case.build().train()
    images, labels = next(iter(data.training_batches(2 * BATCH, seed=seed + 100)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the table of defaults.py shows what was said
        batch = _sized(images, case), labels
        snip.prune(model, batch, sparsity=case.sparsity, **settings)
    optimizer = case.optimizer(model.parameters(), lr=case.lr)
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 20) * (1 + cos(pi * step / steps)) / 2
    )
    batches = data.training_batches(BATCH, seed=seed)
    for _, (images, labels) in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        F.cross_entropy(model(_sized(images, case)), labels).backward()
        optimizer.step()
        rates.step()
    return {"accuracy": _right(model.eval(), case, data)}


@torch.no_grad()
def _right(model: nn.Module, case: Case, data: Any) -> float:
    batches = data.evaluation_batches(250)
    right = sum(
        int((model(_sized(images, case)).argmax(1) == labels).sum())
        for _, (images, labels) in zip(range(TEST // 250), batches, strict=False)
    )
    return right / TEST


def _sized(images: torch.Tensor, case: Case) -> torch.Tensor:
    return F.avg_pool2d(images, images.shape[-1] // case.size)


def line(name: str, setting: str, found: list[float]) -> str:
    """One row of the table: every seed, and their mean."""
    each, mean = ", ".join(f"{value:.3f}" for value in found), statistics.mean(found)
    return f"| {name} | {CASES[name].sparsity:.0%} | {setting} | {each} | {mean:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", help="default: all")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=200, help="at most an epoch")
    parser.add_argument("--journal", type=Path, help="a file that an interrupted run resumes from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[tuple[str, str], list[float]] = {}
    for seed in options.seeds:
        for name in options.networks or CASES:
            for setting in CASES[name].settings:
                key = f"{name} {setting} {seed} {options.steps}"
                work = partial(accuracy, CASES[name], KINDS[setting], seed, options.steps)
                value = remembered(options.journal, key, work)["accuracy"]
                found.setdefault((name, setting), []).append(value)
    print("| network | sparsity | setting | accuracy per seed | mean |\n|---|---|---|---|---|")
    for (name, setting), values in found.items():
        print(line(name, setting, values))


if __name__ == "__main__":
    main()
