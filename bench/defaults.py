"""What the defaults of `snip.prune` leave of networks that people bring, beside the authors' way.

    python bench/defaults.py                           # the whole zoo: half an hour on one thread
    python bench/defaults.py vgg-16-bn mobilenet-v2 --sparsity 0.95

Nothing is trained. A cell says which part of the kept connections lies on a path from input to
output ("no path" if none does), then how many layers are empty, and how many outputs of a
classifier no input reaches. The settings are the authors' (batch norm in inference mode), the same
with the batch's own statistics, and the defaults: those, zero parts woken, a floor if no path is
left.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from libraries import torchvision
from torch import nn
from zoo_networks import CLASSES, ZOO, Network, pictures

import snip
from snip.masks import empty_layers
from snip.models import IMAGES, MODELS
from snip.network.paths import follow

SPARSITIES = (0.9, 0.95, 0.98)
SETTINGS: dict[str, dict[str, Any]] = {
    "authors": {"scoring": snip.Scoring.authors(), "floor": 0},
    "batch statistics": {"scoring": snip.Scoring.authors(batch_norm="train"), "floor": 0},
    "default": {},
}


def vgg(widths: str) -> nn.Sequential:
    """A VGG with batch norm for 32x32 pictures, as people write it: `M` halves the picture."""
    layers: list[nn.Module] = []
    before = 3
    for word in widths.split():
        if word == "M":
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(before, int(word), 3, padding=1), nn.BatchNorm2d(int(word)), nn.ReLU()]
        before = int(word)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, CLASSES))


VGG_11_HALF = "32 M 64 M 128 128 M 256 256 M 256 256 M"
VGG_16 = "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M"
NETWORKS: tuple[Network, ...] = (
    Network("vgg-16-bn", lambda: vgg(VGG_16), pictures(32, 64)),
    Network("vgg-11-bn-half", lambda: vgg(VGG_11_HALF), pictures(32, 64)),
    # By its class: drawn as PyTorch draws it, not as snip.models does.
    Network("resnet-20", lambda: MODELS["resnet-20"].builder(IMAGES["cifar-10"]), pictures(32, 64)),
    Network(
        "mobilenet-v2",
        lambda: torchvision.models.mobilenet_v2(num_classes=CLASSES),
        pictures(64),
    ),
    *ZOO,
)


def row(
    network: Network, sparsity: float, settings: dict[str, Any], rule: str | None
) -> dict[str, Any]:
    """One network, pruned once: what is left of it, or why it was refused."""
    torch.manual_seed(0)
    model, batch = network.build(), network.batch()
    if rule:
        snip.initialize(model, rule, seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            masks = snip.prune(model, batch, sparsity=sparsity, loss_fn=network.loss_fn, **settings)
        except snip.InputError as error:
            return {"refused": str(error)}
    paths = follow(model, masks, _without_labels(network.inputs(batch)))
    biases = [mask for mask in masks.values() if mask.ndim == 1]
    return {
        "live": sum(int(mask.sum()) for mask in (paths.effective or {}).values()) / masks.kept,
        "connected": paths.connected,
        "dead_outputs": len(paths.dead_outputs),
        "empty": len(empty_layers(masks)),
        "layers": sum(mask.ndim > 1 for mask in masks.values()),
        "biases": [sum(int(m.sum()) for m in biases), sum(m.numel() for m in biases)],
        "reason": paths.why_not,
        "warnings": [str(w.message) for w in caught if w.category is snip.SnipWarning],
    }


def _without_labels(inputs: Any) -> Any:
    if not isinstance(inputs, dict):
        return inputs
    return {name: value for name, value in inputs.items() if name != "labels"}


def cell(found: dict[str, Any]) -> str:
    """A row in a few words."""
    if "refused" in found:
        return "refused"
    if found["reason"]:
        return f"not followed, {found['empty']} empty"
    left = f"{found['live']:.0%}" if found["connected"] else "no path"
    left += f", {found['empty']} of {found['layers']} empty" if found["empty"] else ""
    dead = found["dead_outputs"] if found["connected"] else 0
    return left + (f", {dead} dead output{'s' * (dead > 1)}" if dead else "")


def remembered(path: Path | None, key: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an earlier run wrote for this key, or the result of `work`, written down."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    for line in lines:
        if json.loads(line)["key"] == key:
            return json.loads(line)
    found = {"key": key, **work()}
    if path:
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")
    return found


def table(options: argparse.Namespace) -> Iterator[str]:
    """The lines of a Markdown table, a network and sparsity each."""
    yield f"| network | sparsity | {' | '.join(SETTINGS)} |"
    yield "|---" * (2 + len(SETTINGS)) + "|"
    for network in NETWORKS:
        if options.networks and network.name not in options.networks:
            continue
        for sparsity in options.sparsity:
            drawn = f" {options.initialize}" if options.initialize else ""
            cells = [
                remembered(
                    options.journal,
                    f"{network.name} {sparsity:g} {name}{drawn}",
                    partial(row, network, sparsity, settings, options.initialize),
                )
                for name, settings in SETTINGS.items()
            ]
            yield f"| {network.name} | {sparsity:.0%} | {' | '.join(map(cell, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", help="default: all")
    parser.add_argument("--sparsity", type=float, nargs="+", default=SPARSITIES)
    parser.add_argument("--initialize", metavar="NAME", help="draw by a rule of snip.initialize")
    parser.add_argument("--journal", type=Path, help="a file that an interrupted run resumes from")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for line in table(options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
