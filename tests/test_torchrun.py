"""The script of docs/distributed.md, made whole, as torchrun starts it."""

import os
import subprocess
import sys

import torch
from processes import PATIENCE, SEES_THIS_TREE

SCRIPT = """
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import snip

dist.init_process_group("gloo", timeout=timedelta(minutes=5))
rank, found = dist.get_rank(), {}
generator = torch.Generator().manual_seed(rank)  # each process has its own batches
my_batches = [(torch.randn(4, 6, generator=generator), torch.arange(4)) for _ in range(2 + rank)]
for how in ("ddp", "fsdp"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    if how == "ddp":
        model = DistributedDataParallel(model)
    else:
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    masks = snip.prune(model, my_batches, sparsity=0.6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets in my_batches[:2]:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    masks.check(model)
    found[how] = dict(masks.items())
torch.save(found, f"{sys.argv[1]}/{rank}.pt")
# A collective launched by backward() holds a Python object. If a gloo thread frees it while Python
# shuts down, the process aborts (pytorch/pytorch#179291). The handle of a later barrier keeps alive
# what gloo's threads have not freed yet, but only as long as it lives itself: a plain
# dist.barrier() or a local variable would not help.
last = dist.barrier(async_op=True)
last.wait()
dist.destroy_process_group()
"""


def test_processes_of_torchrun_end_with_the_same_masks(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    ended = subprocess.run(
        [*launch, str(script), str(tmp_path)],
        env=os.environ | SEES_THIS_TREE | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for how in ("ddp", "fsdp"):
        # DDP and fully_shard score the same data, and so all four agree.
        for masks in (second[how], first["ddp"]):
            assert all(torch.equal(mask, masks[name]) for name, mask in first[how].items())
    kept = sum(int(mask.sum()) for mask in first["ddp"].values())
    assert kept == round(0.4 * sum(mask.numel() for mask in first["ddp"].values()))
