"""Where the first layer looks: maps of surviving connections, and how to keep them in a record."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path

import torch

from snip.data import load
from snip.masks import Masks
from snip.reports.pictures import shares
from snip.runs import RunResult
from snip.training.journal import MASKS

SIDE = 28


def map_of(result: RunResult) -> torch.Tensor:
    """Where the first layer of a finished run looks: a share of its outputs for every pixel."""
    first = next(iter(Masks.load(result.folder / MASKS).values()))
    found = shares(first, (1, SIDE, SIDE))
    assert found is not None  # maps are made of networks whose first layer reads whole images
    return found


def packed(values: torch.Tensor) -> str:
    """Values from 0 to 1 as text, a byte each: a record holds hundreds of maps."""
    bytes_ = (values.flatten().clamp(0, 1) * 255).round().to(torch.uint8).numpy().tobytes()
    return base64.b64encode(bytes_).decode()


def unpacked(text: str) -> torch.Tensor:
    """The inverse of `packed`, as a picture [28, 28]."""
    values = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
    return values.view(SIDE, SIDE) / 255


@cache
def class_means(dataset: str, data_dir: Path | None = None) -> torch.Tensor:
    """The mean image of each class of the training set, [classes, pixels], from 0 to 1."""
    train = load(dataset, data_dir=data_dir).train
    images = train.images.flatten(1)
    classes = int(train.labels.max()) + 1
    means = [images[train.labels == number].float().mean(0) for number in range(classes)]
    return torch.stack(means) / 255


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Pearson's; 0 for a map without any contrast."""
    one, other = (value.flatten().double() - value.double().mean() for value in (one, other))
    norm = float(one.norm() * other.norm())
    return float(one @ other) / norm if norm else 0.0
