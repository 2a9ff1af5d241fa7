"""Whatever becomes of an optimiser's state, the fused step never misreads its memory."""

import copy
from pathlib import Path

import pytest
import torch
from guard_parts import AT_THE_SAME_ADDRESS, in_place, strided, trained
from step_parts import assert_same, ordinary
from training_parts import CONFIG, StoppedError, pruned_network, stopping_at

from snip.common.errors import FileError
from snip.data import load
from snip.engine.kernels.library import available
from snip.training import train

pytestmark = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


def buffers(optimizer: torch.optim.Optimizer) -> list[dict[str, torch.Tensor]]:
    return [optimizer.state[p] for p in optimizer.param_groups[0]["params"]]


def steps_as_torch(fast, other, theirs, step, batch):
    """The fused step and an ordinary one of the other network end alike, or both are refused."""
    try:
        ordinary(other, theirs, *batch)
    except RuntimeError:  # what torch refuses, the fused step refuses
        with pytest.raises(RuntimeError):
            step(*batch)
        return
    step(*batch)
    assert_same(fast, other, 1e-3)


@pytest.mark.parametrize(
    "change",
    [
        torch.Tensor.double,
        torch.Tensor.bfloat16,
        strided,
        lambda buffer: torch._neg_view(-buffer),
        lambda buffer: buffer.mean().expand(buffer.shape),
    ],
)
def test_momentum_of_another_kind_goes_torchs_way(change):
    fast, other, mine, theirs, step, batch = trained()
    for optimizer in (mine, theirs):
        for state in buffers(optimizer):
            state["momentum_buffer"] = change(state["momentum_buffer"])
    steps_as_torch(fast, other, theirs, step, batch)


@pytest.mark.parametrize("length", [0, 1, -1, 5000])
def test_momentum_of_another_shape_is_refused_and_moves_nothing(length):
    fast, _, mine, _, step, batch = trained()
    first = buffers(mine)[0]
    count = first["momentum_buffer"].numel()
    first["momentum_buffer"] = torch.zeros(length if length >= 0 else count - 1)
    before = copy.deepcopy(fast)
    with pytest.raises(RuntimeError, match=r"size|shape"):
        step(*batch)
    assert_same(fast, before, 0)


def test_momentum_changed_in_its_place_is_seen():
    fast, other, mine, theirs, step, batch = trained()
    for optimizer in (mine, theirs):
        buffer = buffers(optimizer)[0]["momentum_buffer"]
        buffer.data = torch._neg_view(buffer.data)  # the same tensor at the same address
    step(*batch)
    ordinary(other, theirs, *batch)
    assert_same(fast, other)


def test_momentum_that_shares_memory_goes_torchs_way():
    fast, other, mine, theirs, step, batch = trained()
    for network, optimizer in ((fast, mine), (other, theirs)):
        weight = next(network.parameters())
        optimizer.state[weight]["momentum_buffer"] = weight.detach()
    step(*batch)
    ordinary(other, theirs, *batch)
    assert_same(fast, other)


def buffer_of(content: dict, name: str) -> dict:
    return next(state for state in content["optimizer"]["state"].values() if name in state)


@pytest.mark.parametrize(("optimizer", "name"), [("sgd", "momentum_buffer"), ("adam", "exp_avg")])
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.flatten()[:-1],
        lambda t: t.sum(),
        lambda t: t.double(),
        lambda t: t[None],
        lambda _: 3,
    ],
)
def test_an_optimisers_state_that_does_not_fit_is_refused(
    tmp_path: Path, optimizer: str, name: str, change
):
    config = CONFIG.__class__(**{**CONFIG.to_dict(), "optimizer": optimizer, "lr": 1e-3})
    mnist = load("mnist").subset(500, 100)
    with pytest.raises(StoppedError):
        train(
            pruned_network(mnist), mnist, config,
            folder=tmp_path, checkpoint_seconds=0, step=stopping_at(5),
        )  # fmt: skip
    path = next(p for p in tmp_path.rglob("*") if p.is_file() and "checkpoint" in p.name)
    content = torch.load(path, weights_only=True)
    kept = buffer_of(content, name)
    kept[name] = change(kept[name])
    torch.save(content, path)
    model = pruned_network(mnist)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(FileError, match="damaged"):
        train(model, mnist, config, folder=tmp_path)
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items())


@pytest.mark.parametrize("change", AT_THE_SAME_ADDRESS[:5])
def test_momentum_that_looks_elsewhere_is_never_misread(change):
    fast, other, mine, theirs, step, batch = trained()
    for optimizer in (mine, theirs):
        in_place(buffers(optimizer)[0]["momentum_buffer"], change)
    steps_as_torch(fast, other, theirs, step, batch)
