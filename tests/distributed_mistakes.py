"""Mistakes of processes that prune together: models, ways to share them, and settings."""

from functools import partial

import torch
import torch.nn.functional as F
from distributed_parts import data, mlp, shared
from torch import nn

import snip

SCORING = snip.Scoring


def differing(model, rank):
    """Other weights in the second process, behind the back of DDP."""
    if rank:
        with torch.no_grad():
            model.module[0].weight.mul_(torch.rand(9, 6))


def released(model, rank):
    """Pruned alike in both, and let go in the second, where all connections compete again."""
    snip.prune(model.module, data(), sparsity=0.5)
    if rank:
        snip.release(model)


def nan_in_second(rank, model, batch):
    loss = F.cross_entropy(model(batch[0]), batch[1])
    return loss * torch.nan if rank else loss


def broken_in_second(rank, model, batch):
    if rank:
        raise RuntimeError("no such column")
    return F.cross_entropy(model(batch[0]), batch[1])


def own_method(model, batches, loss_fn=None, *, params=None, scoring=None):
    raise AssertionError("refused before it is called")


def wider_in_second(rank):
    return nn.Sequential(nn.Linear(6, 9 + rank), nn.Tanh(), nn.Linear(9 + rank, 4))


def deep(rank):
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(6, 6) for _ in range(6)], nn.Linear(6, 4))


def scope_of_many(rank):
    """Differs in the last of its entries only."""
    return {f"{layer}.weight": 0.5 for layer in range(5)} | {"5.weight": 0.9 if rank else 0.1}


def normed(rank):
    model = mlp()
    nn.utils.parametrizations.weight_norm(model[0])
    return model


class Attending(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0])


def tensor_parallel(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    return parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})


def by_columns(model):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    return fully_shard(model, shard_placement_fn=lambda p: Shard(int(p.shape == (9, 6))))


def hybrid(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b")))


def but_one(model):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, ignored_params={model[0].weight})


def first_fsdp(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


class Outer(nn.Module):
    """A user's module around DDP, which a pruning of the whole does not notice by itself."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return self.part(x)


def part_of_it(model):
    return Outer(shared(model, "ddp"))


DDP, FSDP = partial(shared, how="ddp"), partial(shared, how="fsdp")
# Name -> how the model is shared, settings of `prune` in a process, and what both are told.
CASES = {
    "sparsities": (DDP, lambda rank: {"sparsity": 0.5 + 0.1 * rank}, "sparsity 0.6 in process 1"),
    "batch norms": (
        FSDP,
        lambda rank: {"scoring": SCORING(batch_norm=("train", "eval")[rank])},
        "scoring.batch_norm 'eval' in process 1, 'train' in process 0",
    ),
    "a scope of many": (
        FSDP,
        lambda rank: {"network": deep, "scope": scope_of_many(rank)},
        "scope of '5.weight' 0.9 in process 1, 0.1 in process 0",
    ),
    "a sparsity that is none": (
        FSDP,
        lambda rank: {"sparsity": 0.5 + rank},
        "sparsity is 1.5",
    ),
    "methods": (FSDP, lambda rank: {"method": ("snip", "magnitude")[rank]}, "method"),
    "parameters": (
        DDP,
        lambda rank: {"params": (lambda name, module, param: not rank or name != "0.weight")},
        "parameter '0.weight'",
    ),
    "models": (FSDP, lambda rank: {"network": wider_in_second}, "(10, 6) torch.float32"),
    "weights": (DDP, lambda rank: {"before": differing}, "checksum"),
    "masks": (
        DDP,
        lambda rank: {"before": released, "sparsity": 0.6, "method": "random"},
        "checksum of the masks",
    ),
    "no data, DDP": (DDP, lambda rank: {"batches": [data()][rank:]}, "there were no batches"),
    "no data, FSDP": (
        FSDP,
        lambda rank: {"batches": [data()][rank:]},
        "there were no batches in process 1",
    ),
    "no data for a method without": (
        DDP,
        lambda rank: {"batches": [data()][rank:], "method": "magnitude"},
        "there were no batches",
    ),
    "a generator": (
        DDP,
        lambda rank: {"batches": iter([data()]) if rank else [data()]},
        "batches that can be read again",
    ),
    "nan, DDP": (DDP, lambda rank: {"loss_fn": partial(nan_in_second, rank)}, "the loss is nan"),
    "nan, FSDP": (FSDP, lambda rank: {"loss_fn": partial(nan_in_second, rank)}, "the loss is nan"),
    "broken loss": (
        DDP,
        lambda rank: {"loss_fn": partial(broken_in_second, rank)},
        "no such column",
    ),
    "own method": (DDP, lambda rank: {"method": own_method}, "method 'own_method' cannot"),
    "training": (DDP, lambda rank: {"method": "lwc"}, "method 'lwc' trains"),
    "grasp": (FSDP, lambda rank: {"method": "grasp"}, "method 'grasp' cannot be reduced"),
    "synflow": (FSDP, lambda rank: {"method": "synflow"}, "method 'synflow' cannot be reduced"),
    "ema": (DDP, lambda rank: {"scoring": SCORING(reduction="ema")}, "reduction is 'ema'"),
    "sum of abs": (
        FSDP,
        lambda rank: {"scoring": SCORING(reduction="sum_of_abs")},
        "reduction is 'sum_of_abs'",
    ),
    "blocks": (FSDP, lambda rank: {"granularity": "2x2"}, "granularity is '2x2'"),
    "flops": (FSDP, lambda rank: {"budget": "flops"}, "budget is 'flops'"),
    "packed": (FSDP, lambda rank: {"network": Attending, "floor": 2}, "floor is 2"),
    "norm": (FSDP, lambda rank: {"network": normed}, "weight norm"),
    "tensor parallel": (tensor_parallel, lambda rank: {}, "sharded over processes and others"),
    "tensor parallel alone": (
        tensor_parallel,
        lambda rank: {"network": lambda _: nn.Sequential(nn.Linear(6, 4))},
        "fully_shard did not wrap",
    ),
    "columns": (by_columns, lambda rank: {}, "which is not supported"),
    "hybrid": (hybrid, lambda rank: {}, "which is not supported"),
    "a part": (but_one, lambda rank: {}, "sharded over processes and others are not"),
    "a part under DDP": (part_of_it, lambda rank: {}, "'part' inside the model is wrapped in Dist"),
    "FSDP1": (first_fsdp, lambda rank: {}, "FSDP1"),
}
