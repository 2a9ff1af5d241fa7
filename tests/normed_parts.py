"""Weight norm and spectral norm, each as torch has it twice, and a network under them."""

import torch
from torch import nn
from torch.nn import utils
from torch.nn.utils import parametrizations

from snip.network.norms import normed_weights

NORMS = {
    "weight": (parametrizations.weight_norm, "parametrizations.weight.original1"),
    "old weight": (utils.weight_norm, "weight_v"),
    "spectral": (parametrizations.spectral_norm, "parametrizations.weight.original"),
    "old spectral": (utils.spectral_norm, "weight_orig"),
}


def network(norm=lambda layer: layer):
    torch.manual_seed(0)
    return nn.Sequential(
        norm(nn.Conv2d(2, 6, 3)), nn.ReLU(), norm(nn.ConvTranspose2d(6, 4, 2)), nn.ReLU(),
        nn.Flatten(), norm(nn.Linear(4 * 5 * 5, 12)), nn.Tanh(), nn.Linear(12, 3),
    )  # fmt: skip


def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 2, 6, 6, generator=generator), torch.arange(8) % 3


def effective(model):
    """The weights under a norm as the layers compute them in eval mode."""
    with torch.no_grad():
        model.eval()(batch()[0])
    found = {name: getattr(n.layer, n.key).detach() for name, n in normed_weights(model).items()}
    model.train()
    return found
