"""Golden masks: every method on five networks, and options of `snip.prune`; refusals count."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from golden_networks import Transformer
from torch import Tensor, nn

import snip
from snip.data import load
from snip.methods.controls import inverted, randomized, shuffled
from snip.models import build

Value = Any  # of JSON
Rows = dict[str, Callable[[], Value]]
Batches = list[tuple[Tensor, Tensor]]


@cache
def mnist(count: int, size: int) -> Batches:
    """Batches of the first images of MNIST; pixels are n / 256, which every float type holds."""
    train = load("mnist").train
    images, labels = train.images[: count * size].float() / 256, train.labels[: count * size]
    return list(zip(images.split(size), labels.split(size), strict=True))


def pattern(images: int, side: int) -> np.ndarray:
    """Colour images of pseudo-random bytes that no library draws."""
    numbers = np.arange(images * 3 * side * side, dtype=np.uint64)
    return (numbers * 2654435761 % 2**32 >> 24).astype(np.uint8).reshape(images, 3, side, side)


def coloured(count: int, size: int) -> Batches:
    """Batches of images of 8x8 pixels, on which a round of ResNet-20 takes milliseconds."""
    images = torch.from_numpy(pattern(count * size, 8)).float() / 256
    labels = torch.arange(count * size) % 10
    return list(zip(images.split(size), labels.split(size), strict=True))


def transformer() -> nn.Module:
    torch.manual_seed(0)
    return Transformer()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batches]]] = {
    "lenet-300-100": (partial(build, "lenet-300-100", seed=0), partial(mnist, 2, 10)),
    "lenet-5-caffe": (partial(build, "lenet-5-caffe", seed=0), partial(mnist, 2, 10)),
    "resnet-20": (partial(build, "resnet-20", seed=0), partial(coloured, 2, 4)),
    "gru-s": (partial(build, "gru-s", seed=0), partial(mnist, 2, 10)),
    "transformer": (transformer, partial(mnist, 2, 8)),
}
UNTRAINED = (
    "snip", "weight-gradient", "random", "magnitude", "erk", "grasp", "synflow", "force",
    "iter-snip", "snip-it",
)  # fmt: skip
TRAINED = ("lwc", "dns", "lc", "sws", "svd", "obd", "lobs")
SHORT = snip.TrainConfig(lr=0.02, iterations=6, lr_drops=())  # lc makes 31 steps of it
# lobs solves a system of equations for each unit, for minutes where a layer has many inputs.
LAYERS_OF_LOBS = {
    "lenet-300-100": ("fc2", "fc3"),
    "lenet-5-caffe": ("conv", "fc2"),
    "resnet-20": ("stage1", "fc"),
}


def pruned(network: str, **options: Any) -> snip.Masks:
    """Masks of a network as it is drawn by seed 0."""
    make, batches = NETWORKS[network]
    model = make()
    torch.manual_seed(0)
    return snip.prune(model, **{"batches": batches(), "sparsity": 0.9} | options)


def pruned_twice(network: str, **options: Any) -> snip.Masks:
    """Masks of a network that is pruned a second time, further."""
    make, batches = NETWORKS[network]
    model = make()
    torch.manual_seed(0)
    snip.prune(model, batches(), sparsity=0.5)
    return snip.prune(model, batches(), sparsity=0.9, **options)


def controlled(control: Callable[..., snip.Masks], network: str) -> snip.Masks:
    """Masks that a sanity control draws in place of SNIP's."""
    masks = pruned(network)
    torch.manual_seed(0)
    return control(masks)


def all_methods() -> Rows:
    """Every method on every network."""
    rows: Rows = {}
    for network in NETWORKS:
        for method in UNTRAINED:
            rows[f"{network} {method}"] = partial(pruned, network, method=method)
        for method in TRAINED:
            options: dict[str, Any] = {"method": method, "training": SHORT}
            if method == "lobs" and network in LAYERS_OF_LOBS:
                options["params"] = partial(is_in, LAYERS_OF_LOBS[network])
            rows[f"{network} {method}"] = partial(pruned, network, **options)
    return rows


def is_in(layers: tuple[str, ...], name: str, _layer: nn.Module, _parameter: Tensor) -> bool:
    return name.startswith(layers)


def is_weight_of_linear(name: str, layer: nn.Module, _parameter: Tensor) -> bool:
    return isinstance(layer, nn.Linear) and name.endswith("weight")


def squared_error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return (model(images) - F.one_hot(labels, 10)).square().sum(1).mean()


def smallest(
    model: nn.Module, batches: object, loss_fn: object = None, **_options: object
) -> dict[str, Tensor]:
    """Method of a user's own: keep the smallest weights."""
    return {name: -weight.detach().abs() for name, weight in model.named_parameters()}


# Options of `snip.prune`, for both LeNets.
OPTIONS: dict[str, dict[str, Any]] = {
    "sparsity 0": {"sparsity": 0.0},
    "sparsity 0.5": {"sparsity": 0.5},
    "sparsity 0.999": {"sparsity": 0.999},
    "sparsity 1": {"sparsity": 1.0},
    "channels": {"granularity": "channel"},
    "channels, half": {"granularity": "channel", "sparsity": 0.5},
    "channels by FLOPs": {"granularity": "channel", "budget": "flops", "sparsity": 0.5},
    "channels by layer": {"granularity": "channel", "scope": "layer"},
    "channels of synflow": {"granularity": "channel", "method": "synflow"},
    "2:4": {"granularity": "2:4", "sparsity": None},
    "1:4 at another sparsity": {"granularity": "1:4", "sparsity": 0.5},
    "1:4": {"granularity": "1:4", "sparsity": 0.75},
    "blocks 4x4": {"granularity": "4x4"},
    "blocks 2x3": {"granularity": snip.Block(2, 3)},
    "blocks by layer": {"granularity": "4x4", "scope": "layer"},
    "blocks with a floor": {"granularity": "4x4", "floor": 0.02},
    "blocks by FLOPs": {"granularity": "4x4", "budget": "flops"},
    "scope layer": {"scope": "layer"},
    "scope uniform": {"scope": "uniform"},
    "scope erk": {"scope": "erk"},
    "scope by name": {"scope": {"fc1.weight": 0.95, "fc1.bias": 0.5, "fc2": 0.8}},
    "scope unknown": {"scope": {"fc9": 0.8}},
    "floor 1%": {"floor": 0.01},
    "floor 30": {"floor": 30, "sparsity": 0.99},
    "floor too high": {"floor": 0.5},
    "floor 0": {"floor": 0, "sparsity": 0.9999},
    "floor auto": {"floor": "auto", "sparsity": 0.9999},
    "FLOPs": {"budget": "flops"},
    "FLOPs by layer": {"budget": "flops", "scope": "layer"},
    "biases kept": {"biases": "keep"},
    "biases kept by FLOPs": {"biases": "keep", "budget": "flops"},
    "weights of linear layers": {"params": is_weight_of_linear},
    "authors": {"scoring": snip.Scoring.authors()},
    "sum of abs": {"scoring": snip.Scoring(reduction="sum_of_abs")},
    "moving average": {"scoring": snip.Scoring(reduction="ema", decay=0.5)},
    "sum of losses": {"scoring": snip.Scoring(loss_reduction="sum")},
    "squared error": {"loss_fn": squared_error},
    "own method": {"method": smallest},
    "inverted": {"method": inverted("snip")},
    "inverted force": {"method": inverted("force"), "sparsity": 0.5},
    "force, biases kept": {"method": "force", "biases": "keep"},
    "synflow by layer": {"method": "synflow", "scope": "layer"},
    "grasp, authors": {"method": "grasp", "scoring": snip.Scoring.authors()},
    "erk by layer": {"method": "erk", "scope": "layer"},
    "random without data": {"method": "random", "batches": None},
    "snip without data": {"batches": None},
    "lwc with a floor": {"method": "lwc", "floor": 0.1},
    "training of snip": {"training": SHORT},
    "unknown method": {"method": "snap"},
}


def all_options() -> Rows:
    """Options of `snip.prune` on the LeNets, and some that other networks are sensitive to."""
    rows: Rows = {}
    for network in ("lenet-5-caffe", "lenet-300-100"):
        for name, options in OPTIONS.items():
            rows[f"{network} {name}"] = partial(pruned, network, **options)
        few = {"batches": mnist(2, 10)[0]}
        many = {"batches": [*mnist(3, 6), *mnist(1, 2)]}
        rows[f"{network} one batch"] = partial(pruned, network, **few)
        rows[f"{network} batches of two sizes"] = partial(pruned, network, **many)
        rows[f"{network} twice"] = partial(pruned_twice, network)
        rows[f"{network} twice, second random"] = partial(pruned_twice, network, method="random")
        rows[f"{network} shuffled"] = partial(controlled, shuffled, network)
        rows[f"{network} randomized"] = partial(controlled, randomized, network)
    for network in ("resnet-20", "gru-s", "transformer"):
        for name in ("authors", "channels", "2:4", "blocks 4x4", "floor 30", "FLOPs", "scope erk",
                     "biases kept", "floor auto"):  # fmt: skip
            rows[f"{network} {name}"] = partial(pruned, network, **OPTIONS[name])
    return rows


def digest(masks: Mapping[str, Tensor]) -> str:
    """Checksum of names, shapes and bits, whatever the order of the names."""
    found = hashlib.sha256()
    for name in sorted(masks):
        found.update(f"{name} {tuple(masks[name].shape)}\n".encode())
        found.update(np.packbits(masks[name].numpy()).tobytes())
    return found.hexdigest()[:32]


def about_masks(make: Callable[[], snip.Masks]) -> Value:
    """Which connections masks keep, or that they are refused."""
    masks = make()
    return {"kept": masks.kept, "total": masks.total, "sha256": digest(masks)}


def masks() -> Rows:
    """Section of the masks."""
    rows = all_methods() | all_options()
    return {name: partial(about_masks, make) for name, make in rows.items()}
