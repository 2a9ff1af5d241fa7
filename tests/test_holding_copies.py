"""Zero stays zero in every copy, in averages, and when a file is loaded."""

import copy
import io
import pickle

import pytest
import torch
from expected_warnings import expects
from holding_parts import assert_zeros, optimizer_of, pruned, step
from networks import make
from torch import nn

import snip

COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": lambda m: _through_torch_save(m),
    "deepcopy of a pickle": lambda m: copy.deepcopy(pickle.loads(pickle.dumps(m))),
}


def _through_torch_save(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", ["mlp", "lstm", "attention"])
@expects("losses")
def test_copies_hold_their_own_zeros(way, kind):
    model, batch, masks = pruned(kind)
    twin = COPIES[way](model)
    assert snip.held_masks(twin) == masks
    assert snip.held_masks(twin).provenance == masks.provenance
    original = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = optimizer_of("SGD", twin)
    for _ in range(3):
        step(twin, batch, optimizer)
        assert_zeros(masks, twin)
    assert all(torch.equal(p, original[n]) for n, p in model.named_parameters())
    assert any(not torch.equal(p, original[n]) for n, p in twin.named_parameters())


def test_a_copied_part_of_a_model_holds_too():
    model, batch, masks = pruned()
    part = copy.deepcopy(model.first)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        part(batch[0]).square().sum().backward()
        optimizer.step()
    assert not part.weight.detach()[~masks["first.weight"]].any()


@expects("left out", "losses")
def test_a_saved_model_is_an_ordinary_one(tmp_path):
    model, batch, masks = pruned("lstm")
    plain, _ = make("lstm")
    names = list(plain.state_dict())
    assert list(model.state_dict()) == names
    assert list(dict(model.named_buffers())) == []
    torch.save(model.state_dict(), tmp_path / "model.pt")
    plain.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True), strict=True)
    torch.testing.assert_close(plain(batch[0]), model(batch[0]))
    masks.check(plain)


@pytest.mark.parametrize("assign", [False, True])
def test_loading_a_dense_checkpoint_keeps_the_masks(assign):
    model, batch, masks = pruned()
    dense, _ = make("mlp")
    model.load_state_dict(dense.state_dict(), assign=assign)
    masks.check(model)
    for p in model.parameters():
        p.requires_grad_()
    optimizer = optimizer_of("SGD", model)
    step(model, batch, optimizer)
    assert_zeros(masks, model)
    assert snip.held_masks(model) == masks


@pytest.mark.parametrize("multi", [False, True])
def test_ema_copies(multi):
    model, batch, masks = pruned("residual")
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9) if multi else None
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average, use_buffers=True)
    optimizer = optimizer_of("SGD", model)
    for _ in range(3):
        step(model, batch, optimizer)
        ema.update_parameters(model)
    assert_zeros(masks, ema.module)


def test_loading_a_tied_weight_keeps_the_zeros():
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh(), nn.Linear(6, 6, bias=False))
    model[2].weight = model[0].weight
    dense = copy.deepcopy(model.state_dict())
    masks = snip.prune(model, (torch.randn(4, 6), torch.tensor([0, 1, 2, 3])), sparsity=0.5)
    model.load_state_dict(dense)
    masks.check(model)
    snip.release(model)
    assert not model._load_state_dict_post_hooks


def test_saved_parameters_need_neither_the_library_nor_trust():
    model, _, _ = pruned()
    for saved in (model.state_dict(keep_vars=True), list(model.parameters())):
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
