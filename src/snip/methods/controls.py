"""Sanity controls: does it matter which connections a method keeps (Frankle et al. 2021)?

A method that knows more than how many connections each layer needs must do better than its own
masks shuffled or drawn at random, and better than its scores turned upside down; one that knows
something of these very weights must do better than its masks around other weights.

    masks = snip.prune(copy.deepcopy(model), batch, sparsity=0.95)
    shuffled(masks).apply(model)

The copy is pruned and not the model, whose removed weights would be zero where the control keeps
them. For re-drawn weights nothing is needed here: `snip.initialize(model)` obeys held masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from snip.common.errors import warn
from snip.masks import Masks
from snip.methods import AtInitialisation, Score, named_method
from snip.methods.baselines import fresh_generator
from snip.network.network import Network
from snip.scoring.gradients import Scores
from snip.selection.budgets import layers
from snip.selection.granularity import Element, Granularity
from snip.selection.select import with_survivors

SHUFFLE, RANDOM, REDRAW, INVERT = "shuffle", "random", "redraw", "invert"
NONE = "none"
CONTROLS = (SHUFFLE, RANDOM, REDRAW, INVERT)


def shuffled(
    masks: Masks, granularity: Granularity = Element(), model: nn.Module | None = None
) -> Masks:
    """The masks with the places of each parameter shuffled; each keeps as many as it did.

    Like `randomized`, this draws from torch's global generator, as the method "random" does. Masks
    of blocks, patterns or units become masks of single connections, unless `granularity` says what
    is drawn whole: `snip.Block(4, 4).on(model, batch)` for "4x4". Blocks at a border are smaller,
    so that a parameter may keep a little less. With `model`, something is kept of each row that its
    weight or spectral norms divide by.
    """
    groups = [[name] for name in masks]
    return _drawn(masks, groups, granularity, model).with_provenance(control=SHUFFLE)


def randomized(
    masks: Masks, granularity: Granularity = Element(), model: nn.Module | None = None
) -> Masks:
    """Random masks that keep as many connections of each layer, its weights and biases alike."""
    groups = layers(masks).values()
    return _drawn(masks, groups, granularity, model).with_provenance(control=RANDOM)


def inverted(method: str | Score | AtInitialisation) -> AtInitialisation:
    """The method with its scores upside down, in every round: for `snip.prune(method=...)`."""
    name, chosen = named_method(method)

    def score(*args: Any, **kwargs: Any) -> Scores:
        return {key: -value for key, value in chosen.score(*args, **kwargs).items()}

    score.__qualname__ = f"inverted {name}"  # for the provenance
    return replace(chosen, score=score)


# Those that make other masks of a method's.
OF_MASKS: dict[str, Callable[[Masks, Granularity, nn.Module], Masks]] = {
    SHUFFLE: shuffled,
    RANDOM: randomized,
}


def _drawn(
    masks: Masks, groups: Iterable[list[str]], granularity: Granularity, model: nn.Module | None
) -> Masks:
    """Masks that keep as many connections of each group, drawn at random."""
    whole = masks.provenance.granularity
    if granularity == Element() and whole not in (None, str(granularity)):
        warn(
            f"these masks keep or remove '{whole}' whole, and single connections are drawn: give "
            "granularity=, such as snip.Block(4, 4).on(model, batch), to draw whole ones."
        )
    if not granularity.accepts_scope:  # it decides itself what each layer keeps, as it did before
        groups = [list(masks)]
    generator = fresh_generator()
    kept: dict[str, torch.Tensor] = {}
    for names in groups:
        scores = {name: torch.rand(masks[name].shape, generator=generator) for name in names}
        if model is not None:
            scores = with_survivors(
                Network.of(model).normed, scores, group_size=granularity.group_size
            )
        count = sum(int(masks[name].count_nonzero()) for name in names)
        kept |= granularity.keep(scores, count)
    drawn = Masks({name: kept[name] for name in masks}, masks.provenance)
    return drawn.with_provenance(granularity=str(granularity))
