"""What figures 2, A1 and A2 show, in numbers: maps beside images, other labels, draws, sparsities.

`Maps` of several seeds are compared class by class. How like two maps are is their correlation, and
the yardstick is chance itself: the correlation of maps that differ only in their draw of weights
and images.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import torch

from snip.experiments.kinds import Record
from snip.experiments.measures.maps import correlation

Maps = torch.Tensor  # of one seed, [classes, sparsities, pixels]
MEAN, MAGNITUDE = "the mean", "the magnitude"
READ_BACK = f"class read back by {MAGNITUDE}"
READ_BACK_WRONG = f"{READ_BACK}, all labels wrong"
WITH_WRONG = "correlation with the maps of wrong labels"
BETWEEN_SEEDS = "correlation between seeds"
WITH_HIGHEST = "correlation with the highest sparsity"
INVERSION = "correlation of plain and inverted"
CHANGED = "classes that inversion changes more than another seed"
WITH_SNIP = "correlation with the maps of SNIP"


def beside_images(maps: Sequence[Maps], seen: Mapping[str, torch.Tensor], index: int) -> Record:
    """How like the images of its class a map is, and whether the class can be read back from it."""
    found: Record = {}
    for what, images in seen.items():
        found[f"correlation with {what}"] = statistics.mean(
            correlation(one, images[label]) for label, one in _each(maps, index)
        )
        found[f"class read back by {what}"] = _read_back(maps, images, index)
    return found


def beside_wrong_labels(
    maps: Sequence[Maps], wrong: Sequence[Maps], magnitude: torch.Tensor, index: int
) -> Record:
    """The control: if the maps showed the task, wrong labels would change them."""
    return {
        READ_BACK_WRONG: _read_back(wrong, magnitude, index),
        WITH_WRONG: alike(maps, wrong, index),
    }


def beside_inverted(plain: Sequence[Maps], inverted: Sequence[Maps], index: int) -> Record:
    """How like maps of plain and of inverted data are, and for how many classes less than seeds."""
    changed = 0
    for label in range(len(plain[0])):
        own, other = _of_class(plain, label), _of_class(inverted, label)
        changed += alike(own, other, index) < between_seeds(own, index)
    return {INVERSION: alike(plain, inverted, index), CHANGED: changed}


def alike(one: Sequence[Maps], other: Sequence[Maps], index: int) -> float:
    """The mean correlation of two kinds of maps, of the same class and seed, at one sparsity."""
    pairs = zip(_each(one, index), _each(other, index), strict=True)
    return statistics.mean(correlation(ours, theirs) for (_, ours), (_, theirs) in pairs)


def between_seeds(maps: Sequence[Maps], index: int) -> float:
    """The mean correlation of maps of the same class that differ in weights and images."""
    return statistics.mean(alike([one], [other], index) for one, other in combinations(maps, 2))


def with_highest(maps: Sequence[Maps], index: int) -> float:
    """The mean correlation of the maps at one sparsity with those at the highest."""
    return statistics.mean(correlation(row[index], row[-1]) for one in maps for row in one)


def steadiness(maps: Maps) -> float:
    """`with_highest` in the mean over all sparsities but the highest, for one seed."""
    return statistics.mean(with_highest([maps], index) for index in range(maps.shape[1] - 1))


def _of_class(maps: Sequence[Maps], label: int) -> list[Maps]:
    return [one[label : label + 1] for one in maps]


def _each(maps: Sequence[Maps], index: int) -> Iterator[tuple[int, torch.Tensor]]:
    """All maps at one sparsity, with their classes."""
    for one in maps:
        yield from enumerate(one[:, index])


def _read_back(maps: Sequence[Maps], images: torch.Tensor, index: int) -> float:
    """The share of the maps that are most like the image of their own class."""
    return statistics.mean(
        float(_nearest(one, images) == label) for label, one in _each(maps, index)
    )


def _nearest(one: torch.Tensor, images: torch.Tensor) -> int:
    likeness = [correlation(one, image) for image in images]
    return likeness.index(max(likeness))
