"""An accelerated network under DistributedDataParallel in two real processes."""

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from processes import run_in_processes
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.models import build
from snip.network.parameters import Accelerated

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")

# No batch norm: its statistics are each process's own, in dense networks too.
NETWORKS = {"lenet-300-100": 0.95, "lenet-5-caffe": 0.98, "lstm-s": 0.9}
STEPS = 5


def accelerated(name):
    """The same network in every process, every layer sparse, and a batch of twelve."""
    torch.manual_seed(0)
    batch = torch.randn(12, 1, 28, 28), torch.arange(12) % 10
    model = build(name, seed=0)
    snip.prune(model, batch, sparsity=NETWORKS[name])
    return snip.accelerate(model, batch, ways={}), batch


def trained(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()


def train_in_a_process(rank, count, folder):
    for name in NETWORKS:
        model, (inputs, targets) = accelerated(name)
        half = slice(6 * rank, 6 * rank + 6)
        wrapped = nn.parallel.DistributedDataParallel(model)
        trained(wrapped, (inputs[half], targets[half]))
        torch.save(snip.densify(wrapped).state_dict(), f"{folder}/{name}-{rank}.pt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes made of every network; started once, as starting is the slow part."""
    path = tmp_path_factory.mktemp("ddp")
    run_in_processes(train_in_a_process, path)
    return path


@pytest.mark.parametrize("name", NETWORKS)
@expects("losses")
def test_two_processes_train_the_network_of_one(name, folder):
    one, two = (torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1))
    model, batch = accelerated(name)
    assert isinstance(model, Accelerated)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained(model, batch)
    alone = snip.densify(model).state_dict()
    assert one.keys() == alone.keys()
    for key, value in alone.items():
        assert torch.equal(one[key], two[key]), key
        torch.testing.assert_close(one[key], value, rtol=1e-5, atol=1e-5)
    assert any((alone[key] - before[key]).abs().max() > 1e-3 for key in alone)


@pytest.mark.parametrize("name", NETWORKS)
@expects("losses")
def test_pruned_weights_stay_zero_in_both(name, folder):
    masks = snip.masks.held_masks(snip.densify(accelerated(name)[0]))
    for rank in (0, 1):
        weights = torch.load(folder / f"{name}-{rank}.pt", weights_only=True)
        for key, mask in masks.items():
            assert not weights[key][~mask].any()
            assert torch.isfinite(weights[key]).all()
