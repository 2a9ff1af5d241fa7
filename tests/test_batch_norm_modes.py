"""Each mode of batch norms while scoring has networks that it leaves no path; the default does not.

Small ones of the kinds that the table in docs/defaults.md has large: the bare ranking, and then the
defaults, which score by the batch's own statistics and repair a lost path.
"""

import warnings
from itertools import pairwise

import pytest
import torch
from torch import nn

import snip
from snip.network.paths import follow

SPARSITY = 0.95
LOST = 0.93  # where the batch's statistics leave MobileNet no path, and its norms' own leave all
RANKING = {
    "inference": {"scoring": snip.Scoring(batch_norm="eval"), "floor": 0},
    "statistics": {"scoring": snip.Scoring(batch_norm="train"), "floor": 0},
}


def normed(before, after, kernel, activation, **settings):
    conv = nn.Conv2d(before, after, kernel, padding=kernel // 2, **settings)
    return [conv, nn.BatchNorm2d(after), activation()]


def vgg():
    """VGG-16 with batch norm, an eighth as wide, as PyTorch draws it."""
    layers, before = [], 3
    for widths in ((8, 8), (16, 16), (32, 32, 32), (64, 64, 64), (64, 64, 64)):
        for width in widths:
            layers += normed(before, width, 3, nn.ReLU)
            before = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, 10)), 32


class Inverted(nn.Sequential):
    """MobileNetV2's block: wide inside, with a depthwise convolution, and a norm at the end."""

    def __init__(self, before, after):
        inside = 6 * before
        super().__init__(
            *normed(before, inside, 1, nn.ReLU6, bias=False),
            *normed(inside, inside, 3, nn.ReLU6, bias=False, groups=inside),
            *normed(inside, after, 1, nn.Identity, bias=False),
        )


def mobilenet():
    widths = (8, 12, 16, 24, 32, 48, 64)
    blocks = [Inverted(before, after) for before, after in pairwise(widths)]
    stem, last = normed(3, 8, 3, nn.ReLU6, bias=False), normed(64, 256, 1, nn.ReLU6, bias=False)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10)]
    return nn.Sequential(*stem, *blocks, *last, *head), 8


def made(build):
    torch.manual_seed(0)
    model, size = build()
    return model, (torch.randn(20, 3, size, size), torch.arange(20) % 10)


def has_a_path(build, **settings):
    model, (images, labels) = made(build)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        masks = snip.prune(model, (images, labels), sparsity=SPARSITY, **settings)
    assert masks.sparsity == pytest.approx(SPARSITY, abs=1e-4)
    found = follow(model, masks, images)
    assert not found.why_not
    return found.connected


@pytest.mark.parametrize(
    ("build", "mode", "expected"),
    [
        (vgg, "inference", False),
        (vgg, "statistics", True),
        (mobilenet, "inference", True),
        (mobilenet, "statistics", False),
    ],
)
def test_the_bare_ranking_depends_on_the_mode(build, mode, expected):
    assert has_a_path(build, **RANKING[mode]) == expected


@pytest.mark.parametrize("build", [vgg, mobilenet])
def test_the_defaults_keep_a_path_in_both(build):
    assert has_a_path(build)


def test_a_network_without_a_path_is_scored_by_the_norms_own_statistics():
    model, batch = made(mobilenet)
    with pytest.warns(snip.SnipWarning, match=r"scoring=Scoring\(batch_norm='eval'\) instead"):
        masks = snip.prune(model, batch, sparsity=LOST)
    assert masks.provenance.batch_norm == "eval"
    asked, batch = made(mobilenet)
    scoring = snip.Scoring(batch_norm="eval")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert snip.prune(asked, batch, sparsity=LOST, scoring=scoring) == masks


def test_batches_that_are_gone_leave_the_floors():
    model, batch = made(mobilenet)
    with pytest.warns(snip.SnipWarning, match="pruned with (floor|scope)="):
        masks = snip.prune(model, (one for one in [batch]), sparsity=LOST)
    assert masks.provenance.batch_norm == "train"
