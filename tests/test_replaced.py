"""A pruned parameter whose place another one took: it is named, and not taken for pruned."""

import copy
import gc
import pickle
import warnings
import weakref

import pytest
import torch
from torch import nn

import snip


def pruned():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    batch = torch.randn(8, 6), torch.arange(8) % 4
    return model, batch, snip.prune(model, batch, sparsity=0.5)


def replace(model):
    model[0].weight = nn.Parameter(torch.ones_like(model[0].weight))


def step(model, batch):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()


def test_an_optimiser_of_the_new_parameter_says_so_once():
    model, batch, _ = pruned()
    replace(model)
    with pytest.warns(snip.SnipWarning, match=r"'Linear.weight' was replaced") as said:
        step(model, batch)
    assert len(said) == 1
    assert (model[0].weight != 0).all()  # it is dense, as was said


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_is_watched_by_itself(copied):
    model, batch, masks = pruned()
    twin = copied(model)
    replace(twin)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, batch)  # which does not train the twin
        assert snip.held_masks(model) == masks
    with pytest.warns(snip.SnipWarning, match="was replaced"):
        step(twin, batch)


def test_a_parameter_that_was_replaced_is_not_among_the_held_masks():
    model, _, masks = pruned()
    replace(model)
    with pytest.warns(snip.SnipWarning, match=r"'0.weight' was replaced.*masks.apply\(model\)"):
        found = snip.held_masks(model)
    assert set(found) == set(masks) - {"0.weight"}
    masks.apply(model)
    assert snip.held_masks(model) == masks
    masks.check(model)


def test_what_was_released_may_be_replaced():
    model, batch, _ = pruned()
    snip.release(model)
    replace(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert snip.held_masks(model) is None
        step(model, batch)


def test_watching_keeps_no_model_alive():
    model, batch, _ = pruned()
    step(model, batch)
    gone = weakref.ref(model[0])
    gc.disable()
    try:
        del model  # no circle holds it until a collection
        assert gone() is None
    finally:
        gc.enable()


def test_masks_stay_on_a_parameter_that_torch_swaps_for_its_conversion():
    model, (inputs, targets), masks = pruned()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    step(model, (inputs.double(), targets))
    masks.check(model)
    assert snip.held_masks(model) == masks


def test_masks_stay_where_parameters_are_swapped_between_steps_of_one_optimiser():
    model, (inputs, targets), masks = pruned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for convert in (lambda: None, model.double):
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            convert()
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
        dtype = next(model.parameters()).dtype
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs.to(dtype)), targets).backward()
        for state in optimizer.state.values():
            state["momentum_buffer"] = state["momentum_buffer"].to(dtype)
        optimizer.step()
        masks.check(model)
    assert snip.held_masks(model) == masks
