"""Masks through training under DDP and FSDP2, checkpoints, and another number of processes."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from distributed_parts import data, mlp, shared
from expected_warnings import expects
from processes import run_in_processes
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import snip

HOW = ("ddp", "fsdp")
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}
CASES = [(how, kind) for how in HOW for kind in OPTIMIZERS]
STEPS = 3
SPARSITY = 0.7


def part_of_data(rank, count):
    inputs, targets = data()
    return inputs[rank::count], targets[rank::count]


def train(model, optimizer, batch, masks):
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(batch[0]), batch[1]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for name, parameter in model.named_parameters():
            mask = masks[name.removeprefix("module.")]
            gradient = parameter.grad
            whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            assert not whole[~mask].any()  # before the step, so that no moment ever sees it
        optimizer.step()
        masks.check(model)


def save(model, optimizer, masks, rank, path):
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=path)
    if rank == 0:
        masks.save(f"{path}.masks")


def resume(model, optimizer, path):
    """Load a checkpoint and its masks into a model that was drawn anew."""
    masks = snip.Masks.load(f"{path}.masks")
    masks.apply(model)
    weights, state = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optimizer": state}
    dcp.load(loaded, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    masks.check(model)
    return masks


def begin_in_a_process(rank, count, folder):
    for how, kind in CASES:
        model = shared(mlp(), how)
        masks = snip.prune(model, part_of_data(rank, count), sparsity=SPARSITY)
        optimizer = OPTIMIZERS[kind](model.parameters())
        train(model, optimizer, part_of_data(rank, count), masks)
        save(model, optimizer, masks, rank, f"{folder}/{how}-{kind}-first")


def go_on_in_a_process(rank, count, folder):
    for how, kind in CASES:
        torch.manual_seed(rank)
        model = mlp()
        torch.nn.init.ones_(model[0].weight)  # which the checkpoint overwrites
        model = shared(model, how)
        optimizer = OPTIMIZERS[kind](model.parameters())
        masks = resume(model, optimizer, f"{folder}/{how}-{kind}-first")
        assert snip.held_masks(model) == masks
        assert snip.Masks.from_zeros(model) == masks
        train(model, optimizer, part_of_data(rank, count), masks)
        save(model, optimizer, masks, rank, f"{folder}/{how}-{kind}-second")


def alone(kind, steps):
    """The same training in one process."""
    model = mlp()
    masks = snip.prune(model, data(), sparsity=SPARSITY)
    optimizer = OPTIMIZERS[kind](model.parameters())
    for _ in range(steps):
        train(model, optimizer, data(), masks)
    return model, masks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two processes prune, train and save; four go on from there and save again."""
    path = tmp_path_factory.mktemp("training")
    run_in_processes(begin_in_a_process, path, 2)
    run_in_processes(go_on_in_a_process, path, 4)
    return path


@pytest.mark.parametrize(("how", "kind"), CASES)
@pytest.mark.parametrize(("steps", "name"), [(1, "first"), (2, "second")])
@expects("losses")
def test_one_process_resumes_what_two_and_four_have_trained(how, kind, steps, name, folder):
    expected, masks = alone(kind, steps)
    model = mlp()
    loaded = {"model": model.state_dict()}
    dcp.load(loaded, checkpoint_id=folder / f"{how}-{kind}-{name}", no_dist=True)
    model.load_state_dict(loaded["model"])
    found = snip.Masks.load(folder / f"{how}-{kind}-{name}.masks")
    assert found == masks
    found.check(model)  # before they are applied: the zeros are in the checkpoint
    found.apply(model)
    for key, value in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    optimizer = OPTIMIZERS[kind](model.parameters())
    train(model, optimizer, data(), found)


@expects("losses")
def test_the_training_moves_the_weights(folder):
    """So that the comparison above can fail."""
    before, after = alone("sgd", 1)[0], alone("sgd", 2)[0]
    assert (before[0].weight - after[0].weight).abs().max() > 1e-3
