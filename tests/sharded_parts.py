"""A model under FSDP2: evaluated, trained, and the masks of one process on the data of all."""

import torch
import torch.nn.functional as F
from distributed_parts import batches_of, mlp, shared

import snip

PROCESSES = 2


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def whole(model):
    """Every parameter, gathered from all processes."""
    return {n: p.full_tensor() for n, p in model.named_parameters()}


def train(model, rank, masks, optimizer=None):
    """Some steps, through which what is pruned stays zero."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    before = whole(model)
    for batch in batches_of(rank, PROCESSES):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    masks.check(model)
    after = whole(model)
    assert all(not after[name][~mask].any() for name, mask in masks.items())
    assert any(not torch.equal(after[name], before[name]) for name in masks)


def evaluated(rank, roots=1):
    """A model after a forward without a backward, whose root has its parameters whole."""
    from torch.distributed.fsdp import fully_shard

    model = shared(mlp(), "fsdp") if roots > 1 else fully_shard(mlp())
    evaluate(model, rank)
    return model


def evaluate(model, rank):
    with torch.no_grad():
        model(batches_of(rank, PROCESSES)[0][0])


def alone(model, **settings):
    """The masks of one process on the data of all."""
    return snip.prune(model, batches_of(0, 1), sparsity=0.6, **settings)
