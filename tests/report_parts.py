"""A small MLP with masks made by hand, for tests of the report."""

import torch
from torch import nn

import snip
from snip.masks import Provenance


def mlp():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


def mlp_masks(**provenance):
    return snip.Masks(
        {
            "3.weight": torch.tensor([[1, 1, 0], [1, 0, 0]]).bool(),
            "0.weight": torch.tensor([[1, 0], [0, 0], [1, 1]]).bool(),
            "0.bias": torch.tensor([1, 0, 1]).bool(),
            "3.bias": torch.tensor([0, 0]).bool(),
        },
        Provenance(**provenance),
    )


def applied(masks=None):
    model = mlp()
    (masks or mlp_masks()).apply(model)
    return model
