"""A process that dies or hangs while scoring: the others say so and have changed nothing."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from distributed_parts import data, mlp
from processes import PATIENCE, run_in_processes

import snip

SECONDS = 5  # the time-out of a group in which a process hangs
DEATHS = {"ddp": 1, "fsdp": 2}  # who dies


def shared_in(group, how):
    model = mlp()
    if how == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in (model[0], model[2], model[4]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def weights(model):
    return {
        name: (p.to_local() if hasattr(p, "to_local") else p).detach().clone()
        for name, p in model.named_parameters()
    }


def survived(model, loss_fn):
    """What a survivor is told, after how long, and whether its model is as before."""
    before, start = weights(model), time.monotonic()
    try:
        snip.prune(model, [data(), data()], sparsity=0.5, loss_fn=loss_fn)
    except snip.RankError as error:
        after = weights(model)
        assert after.keys() == before.keys()
        return {
            "error": str(error),
            "seconds": time.monotonic() - start,
            "unchanged": all(torch.equal(after[name], before[name]) for name in before)
            and snip.held_masks(model) is None
            and all(p.grad is None for p in model.parameters()),
        }
    raise AssertionError("pruned without a process")


def fail_in_a_process(rank, count, folder):
    found = {}

    def hangs(model, batch):
        if rank == 1:
            while not (Path(folder) / f"done-{how}").exists():
                time.sleep(0.1)
        return F.cross_entropy(model(batch[0]), batch[1])

    def dies(model, batch):
        if rank == DEATHS[how]:
            os._exit(0)
        return F.cross_entropy(model(batch[0]), batch[1])

    for how in ("ddp", "fsdp"):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=SECONDS))
        if rank < 2:
            model = shared_in(group, how)
            if rank == 0:
                found[f"{how} hangs"] = survived(model, hangs)
                (Path(folder) / f"done-{how}").touch()
            else:
                with pytest.raises(snip.RankError):
                    snip.prune(model, data(), sparsity=0.5, loss_fn=hangs)
        dist.barrier()
    patient = timedelta(seconds=PATIENCE)
    groups = {how: dist.new_group([0, other], timeout=patient) for how, other in DEATHS.items()}
    for how, other in DEATHS.items():
        if rank in (0, other):
            answer = survived(shared_in(groups[how], how), dies)
            found[f"{how} dies"] = answer
    torch.save(found, f"{folder}/found.pt")
    os._exit(0)  # the group of all three cannot be left in order any more


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failures")
    run_in_processes(fail_in_a_process, folder, 3)
    return torch.load(folder / "found.pt", weights_only=True)


@pytest.mark.parametrize("how", ["ddp", "fsdp"])
@pytest.mark.parametrize("what", ["hangs", "dies"])
def test_the_others_stop_with_a_sentence_and_nothing_is_changed(how, what, found):
    answer = found[f"{how} {what}"]
    assert "has lost another one, which died or did not answer" in answer["error"]
    assert "Nothing was pruned" in answer["error"]
    assert answer["unchanged"]
    # No timing: one that dies is noticed long before the time-out, one that hangs by the time-out,
    # without which the others would wait for half an hour.
    assert answer["seconds"] < (60 if what == "hangs" else PATIENCE / 2)
    if what == "hangs":
        assert answer["seconds"] >= SECONDS - 1
