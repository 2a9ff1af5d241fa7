"""Whatever a user does to a tensor, the fused step never reads or writes memory that is not its."""

import copy
from pathlib import Path

import pytest
import torch
from test_training_step import assert_same, mlp, ordinary, pair_of_networks
from torch import nn
from training_parts import CONFIG, StoppedError, pruned_network, stopping_at

import snip
from snip.common.errors import FileError, InputError
from snip.data import load
from snip.engine.kernels.library import available
from snip.engine.kernels.memory import Reused, memory_of, pointer, readable
from snip.training import train

pytestmark = pytest.mark.skipif(not available(), reason="no native kernels on this machine")


def trained(steps: int = 2):
    """Two equal networks with a few steps behind them, their optimisers, a step and a batch."""
    fast, other, batch = pair_of_networks(mlp)
    mine, theirs = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (fast, other))
    step = snip.training_step(fast, mine)
    for _ in range(steps):
        step(*batch)
        ordinary(other, theirs, *batch)
    return fast, other, mine, theirs, step, batch


def buffers(optimizer: torch.optim.Optimizer) -> list[dict[str, torch.Tensor]]:
    return [optimizer.state[p] for p in optimizer.param_groups[0]["params"]]


def strided(buffer: torch.Tensor) -> torch.Tensor:
    return torch.stack((buffer, buffer), 1)[:, 0]


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


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("size", [0, 3, 100_000])
def test_a_weight_of_another_length_is_refused(gradients, size):
    fast, _, _, _, step, (images, labels) = trained()
    next(fast.parameters()).data = torch.zeros(size)
    with torch.set_grad_enabled(gradients), pytest.raises(InputError, match="values must be"):
        fast(images)
    with pytest.raises(InputError, match="values must be"):
        step(images, labels)


def test_a_weight_whose_storage_shrank_is_refused():
    fast, _, _, _, step, batch = trained()
    weight = next(fast.parameters())
    weight.untyped_storage().resize_(16)
    with pytest.raises(InputError, match="values must be"):
        step(*batch)


@pytest.mark.parametrize("change", [torch.Tensor.double, strided, lambda w: torch._neg_view(-w)])
def test_a_weight_of_another_kind_is_never_misread(change):
    fast, _, _, _, _, (images, _) = trained()
    weight = next(fast.parameters())
    with torch.no_grad():
        expected = fast(images)
        weight.data = change(weight.data)
        try:
            found = fast(images)
        except (RuntimeError, InputError):
            return
    torch.testing.assert_close(found, expected)


def shrunk() -> torch.Tensor:
    tensor = torch.zeros(8)
    tensor.untyped_storage().resize_(16)
    return tensor


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(8).double(),
        torch.zeros(9),
        torch.zeros(2, 4),
        torch.zeros(16)[::2],
        torch.zeros(1).expand(8),
        torch._neg_view(torch.zeros(8)),
        torch.zeros(8, device="meta"),
        shrunk(),
    ],
)
def test_no_address_of_another_tensor_leaves_python(tensor):
    with pytest.raises(InputError, match="values must be a contiguous float32 tensor"):
        pointer(tensor, (8,), "values")


def test_addresses_of_fitting_tensors():
    assert pointer(None, (8,), "values") is None
    tensor = torch.zeros(4, 8)
    assert pointer(tensor[1], (8,), "values") == tensor.data_ptr() + 32
    assert pointer(tensor[:, :3], (4, 3), "x", rows=True) == tensor.data_ptr()
    with pytest.raises(InputError, match="x must be"):
        pointer(tensor[:, ::2], (4, 4), "x", rows=True)
    assert readable(tensor)
    assert not readable(tensor, torch.int64)


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


def test_parameters_that_are_no_parameters_any_more():
    fast, _, _, _, step, batch = trained()
    layer = next(m for m in fast.modules() if isinstance(getattr(m, "weight", None), nn.Parameter))
    layer.weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(InputError, match="values must be"):
        step(*batch)


def in_place(buffer: torch.Tensor, change) -> torch.Tensor:
    """Let the same tensor look at its memory in another way."""
    buffer.data = change(buffer.data)
    return buffer


AT_THE_SAME_ADDRESS = [
    lambda t: t[:-1],
    lambda t: t.view(torch.int32),
    lambda t: t[None],
    lambda t: t[:1].expand(len(t)),
    lambda t: torch.as_strided(t, (len(t) // 2,), (2,)),
    torch._neg_view,
]


@pytest.mark.parametrize("change", AT_THE_SAME_ADDRESS)
def test_another_view_at_the_same_address_is_another_memory(change):
    tensor = torch.zeros(8)
    before = memory_of(tensor)
    assert memory_of(tensor.view(8)) == before
    in_place(tensor, change)
    assert tensor.data_ptr() == before[0]
    assert memory_of(tensor) != before


def test_a_storage_of_another_size_at_the_same_address_is_another_memory():
    room = torch.zeros(16)
    small, large = room[:8].clone(), room[:8]
    assert memory_of(small)[1:] != memory_of(large)[1:]
    assert memory_of(room[:8]) != memory_of(torch.as_strided(room[4:], (8,), (1,)))


@pytest.mark.parametrize("change", AT_THE_SAME_ADDRESS[:5])
def test_momentum_that_looks_elsewhere_is_never_misread(change):
    fast, other, mine, theirs, step, batch = trained()
    for optimizer in (mine, theirs):
        in_place(buffers(optimizer)[0]["momentum_buffer"], change)
    steps_as_torch(fast, other, theirs, step, batch)


@pytest.mark.parametrize("change", [lambda w: w[:-1], lambda w: w[:1].expand(len(w))])
def test_a_weight_that_looks_elsewhere_is_never_misread(change):
    fast, _, _, _, step, (images, labels) = trained()
    in_place(next(fast.parameters()), change)
    with torch.no_grad(), pytest.raises(InputError, match="values must be"):
        fast(images)
    with pytest.raises(InputError, match="values must be"):
        step(images, labels)


def test_a_storage_that_shrank_and_came_back_to_its_address_is_refused():
    """The allocator gives the same address again, sooner or later."""
    fast, _, _, _, step, batch = trained()
    weight = next(fast.parameters())
    storage = weight.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    for attempt in range(20_000):
        storage.resize_(size - 4 - attempt % 60 * 4)
        if storage.data_ptr() == address:
            break
    with pytest.raises(InputError, match="values must be"):
        step(*batch)


def test_memory_is_used_again_once_nobody_has_it():
    memory = Reused()
    first, address = memory.made(3, 4)
    first.fill_(1)
    graph = (first * torch.ones(1, requires_grad=True)).sum()  # saves it
    row = first[1].detach()
    del first
    second, elsewhere = memory.made(3, 4)
    assert elsewhere != address
    assert row.tolist() == [1] * 4
    graph.backward()
    del second
    third, again = memory.made(3, 4)
    assert again == elsewhere
    wide, _ = memory.made(3, 5)
    assert wide.shape == (3, 5)
    assert third.data_ptr() not in range(wide.data_ptr(), wide.data_ptr() + wide.nbytes)
