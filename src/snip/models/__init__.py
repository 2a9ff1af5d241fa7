"""The table of networks, the paper's and others. To add one: a class in `networks.py`, a row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from snip.common.errors import InputError, nearest
from snip.data import DATASETS
from snip.data.spec import Images
from snip.models.initializers import initialize
from snip.models.networks import (
    VGG,
    AlexNet,
    LeNet5Caffe,
    LeNet300100,
    ResNet20,
    RowReader,
    WideResNet,
)

__all__ = ["IMAGES", "MODELS", "Images", "ModelSpec", "build"]

Builder = Callable[[Images], nn.Module]

IMAGES: dict[str, Images] = {name: spec.images for name, spec in DATASETS.items()}
MNIST_LIKE = [dataset for dataset, images in IMAGES.items() if images == IMAGES["mnist"]]


@dataclass(frozen=True)
class ModelSpec:
    """A network: its builder, m per data set, and the paper's sparsities."""

    name: str
    builder: Builder
    totals: Mapping[str, int]  # data set -> m, weights and biases without batch norm
    sparsities: Mapping[str, tuple[float, ...]]  # data set -> the paper's, where it has one

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets this network is defined for, the default one first."""
        return tuple(self.totals)


def _lenet(name: str, builder: Builder, total: int, *sparsities: float) -> ModelSpec:
    return ModelSpec(name, builder, dict.fromkeys(MNIST_LIKE, total), _mnist(sparsities))


def _recurrent(
    name: str,
    cell: type[nn.LSTM] | type[nn.GRU],
    hidden: int,
    total: int,
    *sparsities: float,
    gate_constant: float = 0.0,
) -> ModelSpec:
    builder = partial(RowReader, cell=cell, hidden=hidden, gate_constant=gate_constant)
    return ModelSpec(name, builder, {"mnist": total}, _mnist(sparsities))


def _mnist(sparsities: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    return {"mnist": sparsities} if sparsities else {}


def _color(
    name: str,
    builder: Builder,
    cifar: int,
    tiny: int,
    cifar_at: float | None = None,
    tiny_at: float | None = None,
) -> ModelSpec:
    paper = {"cifar-10": cifar_at, "tiny-imagenet": tiny_at}
    sparsities = {dataset: (value,) for dataset, value in paper.items() if value is not None}
    return ModelSpec(name, builder, {"cifar-10": cifar, "tiny-imagenet": tiny}, sparsities)


# Name, class, m per data set, and the sparsities of the paper's result tables, if it is in them.
# For Tiny-ImageNet the paper repeats CIFAR-10's counts, though the last layer has 190 more classes
# there; the counts here are exact. It has no WRN on Tiny-ImageNet: here they double the first
# stride as its other networks do.
_ROWS = (
    _lenet("lenet-300-100", LeNet300100, 266_610, 0.95, 0.98),
    _lenet("lenet-5-caffe", LeNet5Caffe, 431_080, 0.98, 0.99),
    _color("alexnet-s", partial(AlexNet, k=1), 5_070_218, 5_264_968, 0.9, 0.9),
    _color("alexnet-b", partial(AlexNet, k=2), 8_490_378, 8_879_688, 0.9, 0.9),
    _color("vgg-c", partial(VGG, third_kernel=1), 10_526_538, 10_624_008, 0.95, 0.95),
    _color("vgg-d", VGG, 15_245_130, 15_342_600, 0.95, 0.95),
    _color("vgg-like", partial(VGG, hidden_layers=1), 14_982_474, 15_079_944, 0.97, 0.95),
    _color("wrn-16-8", partial(WideResNet, depth=16, widen=8), 10_954_170, 11_051_640, 0.95),
    _color("wrn-16-10", partial(WideResNet, depth=16, widen=10), 17_107_642, 17_229_432, 0.95),
    _color("wrn-22-8", partial(WideResNet, depth=22, widen=8), 17_147_322, 17_244_792, 0.95),
    _recurrent("lstm-s", nn.LSTM, 128, 136_586, 0.95),
    _recurrent("lstm-b", nn.LSTM, 256, 535_306, 0.95),
    _recurrent("gru-s", nn.GRU, 128, 103_690, 0.95),
    _recurrent("gru-b", nn.GRU, 256, 403_978, 0.95),
    _color("resnet-20", ResNet20, 270_906, 283_256),
    _recurrent("lstm-s-forget", nn.LSTM, 128, 136_586, gate_constant=1.0),
    _recurrent("lstm-b-forget", nn.LSTM, 256, 535_306, gate_constant=1.0),
    _recurrent("gru-s-open", nn.GRU, 128, 103_690, gate_constant=1.0),
    _recurrent("gru-b-open", nn.GRU, 256, 403_978, gate_constant=1.0),
    _lenet("lenet-5-relu", partial(LeNet5Caffe, relu=True), 431_080),
)
MODELS: dict[str, ModelSpec] = {row.name: row for row in _ROWS}


def build(name: str, *, dataset: str | None = None, seed: int | None = None) -> nn.Module:
    """Build a network for a data set (by default its first), initialised by "vs"."""
    if name not in MODELS:
        raise nearest("model", name, MODELS)
    spec = MODELS[name]
    dataset = spec.datasets[0] if dataset is None else dataset
    if dataset not in spec.datasets:
        raise InputError(
            f"{name} is not defined for the data set {dataset!r}, only for "
            f"{' and '.join(spec.datasets)}: choose one of these, or another network."
        )
    # Constructors of layers draw from the global generator: with a seed, its state is restored.
    with torch.random.fork_rng(devices=[]) if seed is not None else contextlib.nullcontext():
        model = spec.builder(IMAGES[dataset])
    initialize(model, "vs", seed=seed)
    return model
