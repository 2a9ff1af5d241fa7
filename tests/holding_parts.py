"""Every optimiser of torch, a step with it, and a pruned network whose zeros must stay."""

import inspect

import torch
import torch.nn.functional as F
from networks import make
from torch import nn

import snip

SETTINGS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    "Adam": {"lr": 0.1, "weight_decay": 0.1, "amsgrad": True},
    "AdamW": {"lr": 0.1, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "centered": True},
    "Muon": {"lr": 0.1, "weight_decay": 0.1},
    "LBFGS": {"lr": 0.1},
    "Rprop": {"lr": 0.1},
    "SparseAdam": {"lr": 0.1},
}
OPTIMIZERS = sorted(
    name
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name != "Optimizer"
)


def optimizer_of(name, model, **more):
    params = [p for p in model.parameters() if name != "Muon" or p.ndim == 2]
    settings = SETTINGS.get(name, {"lr": 0.1, "weight_decay": 0.1})
    return getattr(torch.optim, name)(params, **settings, **more)


def step(model, batch, optimizer, clip=None):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        return loss

    optimizer.step(closure)


def pruned(kind="mlp", sparsity=0.7):
    model, batch = make(kind)
    return model, batch, snip.prune(model, batch, sparsity=sparsity)


def assert_zeros(masks, model):
    """Exact +0.0 at every pruned place, and training did move what is kept."""
    masks.check(model)
    for name, mask in masks.items():
        assert not torch.signbit(dict(model.named_parameters())[name].detach()[~mask]).any()
