"""Batches, scores and masks that tests of the granularities share."""

from math import prod

import torch
from hypothesis import strategies as st

import snip

CHANCE = torch.Generator().manual_seed(0)
BATCH = torch.randn(8, 6, generator=CHANCE), torch.arange(8) % 3
IMAGES = torch.randn(4, 2, 6, 6, generator=CHANCE), torch.arange(4) % 3


@st.composite
def parameters(draw, fewest_dimensions=1):
    """Scores of a few parameters, with many equal ones; exact in any order of summation."""
    shapes = st.lists(st.integers(1, 5), min_size=fewest_dimensions, max_size=3)
    found = {}
    for i, shape in enumerate(draw(st.lists(shapes, min_size=1, max_size=3))):
        values = st.lists(st.integers(-2, 3), min_size=prod(shape), max_size=prod(shape))
        found[f"layer{i}.weight"] = torch.tensor(draw(values)).float().view(shape)
    return found


@st.composite
def some_left(draw, scores):
    """Masks of what earlier prunings left."""
    return {
        name: torch.tensor(
            draw(st.lists(st.booleans(), min_size=s.numel(), max_size=s.numel()))
        ).view(s.shape)
        for name, s in scores.items()
        if draw(st.booleans())
    }


def own_scores(model, batches, loss_fn=None, *, params=None, scoring=None):
    return {n: p.detach().square() for n, p in snip.prunable_parameters(model, params).items()}
