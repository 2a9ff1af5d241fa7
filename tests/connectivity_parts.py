"""Masks, networks, the probe and the warnings that tests of paths share."""

import warnings

import torch
from torch import nn

import snip
from snip.network.calls import arguments
from snip.network.paths import Follower, follow

SPARSITY = 0.99


class Strange(nn.Module):
    """Leaves torch on its way, so that no path can be followed."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x):
        return torch.from_numpy(self.fc(x).detach().numpy())


def all_kept(model):
    return {name: torch.ones(p.shape, dtype=torch.bool) for name, p in model.named_parameters()}


def random_masks(model, density=0.5):
    return {name: torch.rand(p.shape) < density for name, p in model.named_parameters()}


def probe(model, masks, inputs):
    found = follow(model, masks, inputs)
    assert found.why_not is None
    quick = reach(model, masks, arguments(model, inputs))  # by a forward alone
    assert (quick.reached > 0) == found.connected
    return found


def reach(model, masks, call):
    with Follower(model, call) as follower:
        return follower.reached(masks)


class Last(nn.Module):
    def __init__(self, rnn, out):
        super().__init__()
        self.rnn, self.fc = rnn, nn.Linear(out, 1)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 2, bias=False, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def heard(work):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    return result, [str(w.message) for w in caught if w.category is snip.SnipWarning]


def connected(model, masks, inputs):
    return follow(model, masks, inputs).connected
