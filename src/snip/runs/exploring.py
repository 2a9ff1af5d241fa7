"""What would survive: a run's network scored again, class by class and at other sparsities.

Nothing is trained and nothing is written: this is for pictures that a run itself has no use for.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from snip.common.errors import InputError, SnipWarning
from snip.data.dataset import Dataset
from snip.data.split import Split
from snip.masks import Masks
from snip.methods import METHODS, AtInitialisation, scope_of
from snip.methods.controls import NONE
from snip.methods.kinds import one_shot
from snip.methods.rounds import Scorer
from snip.models.resolve import draw_network
from snip.network.layout import is_weight
from snip.network.network import Network
from snip.reports.pictures import shares
from snip.runs.config import RunConfig
from snip.runs.run import scoring_batches
from snip.runs.seeds import seeds_of
from snip.scoring.batches import Data
from snip.scoring.gradients import Scores
from snip.selection.request import AUTO
from snip.selection.select import select
from snip.training.parts import seeded

Batch = tuple[torch.Tensor, torch.Tensor]


def not_explorable(config: RunConfig) -> str | None:
    """Why other sparsities cannot be had from one scoring of this run; None if they can."""
    method = METHODS[config.method]
    if not isinstance(method, AtInitialisation) or method.rounds is not one_shot:
        return f"method {config.method} does not decide by one scoring before training"
    if config.granularity != "element" or config.budget != "connections":
        return f"granularity {config.granularity} and budget {config.budget} have other rules"
    return None if config.control == NONE else f"its masks are the control {config.control!r}"


def network_to_score(config: RunConfig) -> nn.Module:
    """The network as the run draws it to be scored."""
    seed = seeds_of(config)["scored_draw"]
    return draw_network(config.model, config.dataset, initializer=config.initializer, seed=seed)


def kept_by_sparsity(
    config: RunConfig, dataset: Dataset, sparsities: Sequence[float]
) -> dict[float, dict[str, int]]:
    """How many connections each layer's weight keeps at each sparsity, by the run's own scores.

    Sparsity 0 keeps all. One that leaves nothing of a small network is left out.
    """
    model = network_to_score(config)
    scores = _scores(config, model, list(scoring_batches(config, dataset)))
    found: dict[float, dict[str, int]] = {}
    for sparsity in sparsities:
        with suppress(InputError):
            masks = _selected(config, model, scores, sparsity)
            found[sparsity] = {
                name: int(mask.count_nonzero())
                for name, mask in masks.items()
                if is_weight(mask.shape)
            }
    return found


def class_maps(
    config: RunConfig, dataset: Dataset, sparsities: Sequence[float], *, wrong_by: int = 0
) -> torch.Tensor | None:
    """The paper's Figure 2: what survives of the first layer if one class alone is scored.

    The share of each pixel's connections, [classes, sparsities, height, width]; None for a
    network whose first layer does not read whole images. `wrong_by` is a control: the loss is told
    the class that is so many further on.
    """
    model = network_to_score(config)
    train_part, _ = dataset.split_validation(config.training.validation)
    maps = []
    for label in range(dataset.classes):
        images, labels = _class_batch(config, dataset, train_part, label)
        told = (labels + wrong_by) % dataset.classes
        scores = _scores(config, model, [(images, told)])
        first = next((name for name, score in scores.items() if is_weight(score.shape)), "")
        row = [
            _map(_selected(config, model, scores, sparsity), first, dataset)
            for sparsity in sparsities
        ]
        if any(found is None for found in row):
            return None
        maps.append(torch.stack([found for found in row if found is not None]))
    return torch.stack(maps)


def class_sizes(config: RunConfig, dataset: Dataset) -> list[int]:
    """How many images each class is scored on: as many as the run takes, or all that there are."""
    train_part, _ = dataset.split_validation(config.training.validation)
    every = (train_part.labels == label for label in range(dataset.classes))
    return [_class_size(config, train_part.take(own)) for own in every]


def _class_size(config: RunConfig, own: Split) -> int:
    return min(config.score_batch_size, len(own))


def _map(masks: Masks, first: str, dataset: Dataset) -> torch.Tensor | None:
    if not first:
        return None
    return shares(masks[first], tuple(dataset.train.images.shape[1:]))


def _class_batch(config: RunConfig, dataset: Dataset, train_part: Split, label: int) -> Batch:
    """A scoring batch of one class, from the part that the run trains on."""
    own = train_part.take(train_part.labels == label)
    size = _class_size(config, own)
    if not size:
        raise InputError(f"{dataset.name} has no training images of class {label}.")
    seed = seeds_of(config)["scoring_batch"]
    chosen = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))[:size]
    return next(iter(dataset.evaluation_batches(size, split=own.take(chosen))))


def _scores(config: RunConfig, model: nn.Module, batches: list[Batch]) -> Scores:
    method: Any = METHODS[config.method]
    network = Network.of(model, biases=config.biases)
    data = Data(batches, config.scoring.batch_dim)
    scorer = Scorer(network, method, data, None, config.scoring)
    with seeded(config.seed, torch.device("cpu")), scorer.awake(scorer.scores) as scores:
        return scores


def _selected(config: RunConfig, model: nn.Module, scores: Scores, sparsity: float) -> Masks:
    floor = 0.0 if config.floor == AUTO else float(config.floor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SnipWarning)  # of a sparsity that nobody asked for
        return select(
            scores,
            sparsity=sparsity,
            scope=scope_of(config.method, METHODS[config.method], config.scope),
            floor=floor,
            packed=Network.of(model).packed,
        )
