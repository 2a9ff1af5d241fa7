"""Zero stays zero under every optimiser, with no line added to the loop."""

import pytest
import torch
import torch.nn.functional as F
from expected_warnings import expects
from holding_parts import OPTIMIZERS, assert_zeros, optimizer_of, pruned, step
from networks import KINDS, make
from processes import run_in_processes
from torch import nn

import snip


@pytest.mark.parametrize("name", [o for o in OPTIMIZERS if o != "SparseAdam"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_every_optimizer_from_the_start(name, clip):
    model, batch, masks = pruned()
    optimizer = optimizer_of(name, model)
    before = model.first.weight.detach().clone()
    for _ in range(4):
        step(model, batch, optimizer, clip)
        assert_zeros(masks, model)
    assert not torch.equal(before, model.first.weight)


@pytest.mark.parametrize("name", [o for o in OPTIMIZERS if o != "SparseAdam"])
def test_every_optimizer_with_state_from_before_the_pruning(name):
    model, batch = make("mlp")
    optimizer = optimizer_of(name, model)
    for _ in range(3):
        step(model, batch, optimizer)
    masks = snip.prune(model, batch, sparsity=0.7)
    for _ in range(3):
        step(model, batch, optimizer)
        assert_zeros(masks, model)


def test_sparse_gradients_of_an_embedding():
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    batch = torch.randint(0, 7, (5, 3)), torch.tensor([0, 1, 2, 1, 0])
    masks = snip.prune(
        model, batch, sparsity=0.5, params=lambda n, m, p: isinstance(m, nn.Embedding)
    )
    optimizer = torch.optim.SparseAdam(model[0].parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    for _ in range(3):
        step(model, batch, optimizer)
        masks.check(model)
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("kind", KINDS)
@expects("left out", "losses")
def test_every_kind_of_network(kind):
    model, batch, masks = pruned(kind)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(model, batch, optimizer)
    assert_zeros(masks, model)


def test_training_equals_training_of_c_times_w():
    """What is held is the paper's network: the same trajectory as an explicit product c * w."""
    model, (inputs, targets), masks = pruned()
    weights = model.first.weight.detach().clone().requires_grad_()
    bias, out, out_bias = (
        p.detach().clone().requires_grad_()
        for p in (model.first.bias, model.second.weight, model.second.bias)
    )
    mine = [weights, bias, out, out_bias]
    c = [masks[n] for n in ("first.weight", "first.bias", "second.weight", "second.bias")]
    other = torch.optim.SGD(mine, lr=0.1, momentum=0.9, weight_decay=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for _ in range(5):
        step(model, (inputs, targets), optimizer, clip=0.05)
        other.zero_grad()
        w1, b1, w2, b2 = (p * m for p, m in zip(mine, c, strict=True))
        F.cross_entropy(F.linear(torch.tanh(F.linear(inputs, w1, b1)), w2, b2), targets).backward()
        nn.utils.clip_grad_norm_(mine, 0.05)
        other.step()
    torch.testing.assert_close(model.first.weight, weights)
    torch.testing.assert_close(model.second.weight, out)


def test_the_gradient_norm_does_not_see_pruned_weights():
    model, batch, masks = pruned()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    for name, mask in masks.items():
        assert not dict(model.named_parameters())[name].grad[~mask].any()


def test_gradient_accumulation():
    model, (inputs, targets), masks = pruned()
    optimizer = optimizer_of("Adam", model)
    for _ in range(3):
        for i in range(5):
            F.cross_entropy(model(inputs[i : i + 1]), targets[i : i + 1]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert_zeros(masks, model)


def test_amp_with_a_gradient_scaler():
    model, (inputs, targets), masks = pruned()
    optimizer = optimizer_of("SGD", model)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        assert_zeros(masks, model)


def test_nan_in_a_pruned_gradient_cannot_come_through():
    model, _, masks = pruned()
    for p in model.parameters():
        p.data.fill_(torch.nan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    masks.check(model)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile(backend):
    model, batch, masks = pruned()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(compiled, batch, optimizer, clip=0.1)
        assert_zeros(masks, model)
    assert snip.held_masks(compiled) == masks


@pytest.mark.filterwarnings("ignore:Profiler record function")
def test_compiled_steps_of_pruned_and_of_other_networks():
    model, batch, masks = pruned()
    for network in (model, make("mlp")[0]):
        optimizer = optimizer_of("SGD", network)
        F.cross_entropy(network(batch[0]), batch[1]).backward()
        before = [p.detach().clone() for p in network.parameters()]
        torch.compile(lambda optimizer=optimizer: optimizer.step(), backend="eager")()
        pairs = zip(before, network.parameters(), strict=True)
        assert not any(torch.equal(old, new) for old, new in pairs)
    assert_zeros(masks, model)


def test_conversions_of_type_and_layout():
    model, (inputs, targets), masks = pruned("residual")
    model = model.to(memory_format=torch.channels_last)
    optimizer = optimizer_of("SGD", model)
    step(model, (inputs, targets), optimizer)
    assert_zeros(masks, model)
    model = model.bfloat16()
    step(model, (inputs.bfloat16(), targets), optimizer_of("SGD", model))
    assert_zeros(masks, model)


def train_in_a_process(rank, count, path):
    torch.manual_seed(0)
    model, batch, masks = pruned("residual")
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(wrapped, (batch[0] + rank, batch[1]), optimizer, clip=0.1)
        masks.check(wrapped)
    torch.save({n: p.detach() for n, p in model.named_parameters()}, f"{path}/{rank}.pt")


def test_ddp_in_two_processes(tmp_path):
    run_in_processes(train_in_a_process, tmp_path)
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(one[name], two[name]) for name in one)
