"""Which masks a model holds: once, until others replace them or they are released."""

import copy

import torch
from expected_warnings import expects
from holding_parts import assert_zeros, optimizer_of, pruned, step
from networks import make

import snip


def test_a_layer_without_connections_and_one_without_losses():
    model, batch = make("mlp")
    empty = {n: torch.zeros(p.shape).bool() for n, p in model.named_parameters()}
    masks = snip.Masks({**empty, "second.weight": torch.ones(3, 8).bool()})
    masks.apply(model)
    step(model, batch, optimizer_of("AdamW", model))
    assert_zeros(masks, model)


def test_later_masks_replace_earlier_ones_and_release_lets_go():
    model, batch, masks = pruned()
    everything = snip.Masks({n: torch.ones_like(m) for n, m in masks.items()})
    everything.apply(model)
    optimizer = optimizer_of("SGD", model)
    step(model, batch, optimizer)
    assert model.first.weight.detach()[~masks["first.weight"]].any()
    masks.apply(model)
    snip.release(model)
    assert snip.held_masks(model) is None
    assert not model.first._load_state_dict_post_hooks
    step(model, batch, optimizer)
    assert model.first.weight.detach()[~masks["first.weight"]].any()


def test_masks_are_held_once_and_forward_is_untouched():
    model, _, masks = pruned()
    twin = copy.deepcopy(model)
    held = [m.first.__dict__["_snip_held"].pairs["weight"][1] for m in (model, twin)]
    assert held[0].data_ptr() == held[1].data_ptr()
    before = masks["first.weight"].clone()
    masks["first.weight"].fill_(True)  # the caller's own copy
    assert torch.equal(snip.held_masks(model)["first.weight"], before)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not model.first._forward_pre_hooks


@expects("left out", "losses")
def test_masks_of_other_parameters_stay():
    model, batch, masks = pruned()
    model.first.requires_grad_(False)
    further = snip.prune(model, batch, sparsity=0.9)
    assert list(further) == ["second.weight", "second.bias"]
    model.first.requires_grad_(True)
    optimizer = optimizer_of("SGD", model)
    step(model, batch, optimizer)
    assert not model.first.weight.detach()[~masks["first.weight"]].any()
    further.check(model)
    narrow = snip.prune(model, batch, sparsity=0.95, params=lambda n, m, p: n == "second.weight")
    step(model, batch, optimizer)
    assert not model.first.weight.detach()[~masks["first.weight"]].any()
    narrow.check(model)


def test_a_parameter_unfrozen_later_is_watched():
    model, batch = make("mlp")
    masks = snip.prune(copy.deepcopy(model), batch, sparsity=0.7)
    model.first.requires_grad_(False)
    masks.apply(model)
    assert not model.first.weight.requires_grad
    model.first.requires_grad_(True)
    assert not model.second.weight.grad_fn
    step(model, batch, optimizer_of("Adam", model))
    masks.check(model)
    assert not model.first.weight.grad[~masks["first.weight"]].any()
