"""Callbacks that are used again, for another model, or in an order that would do harm."""

import shutil

import pytest
import torch
from hugging_face_parts import gpt2, trained, words
from needed import needed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import snip
from snip.masks.holding import after_step

accelerate = needed("accelerate")
from snip.integrations import accelerate as with_accelerate  # noqa: E402
from snip.integrations.transformers import Snip  # noqa: E402


def test_another_model_is_scored_anew(tmp_path):
    callback, data = Snip(sparsity=0.8), words()
    trained(gpt2(), data, tmp_path, callback)
    first, other = callback.masks, gpt2()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(torch.randn(parameter.shape) / 10)
    trained(other, data, tmp_path, callback)
    assert snip.held_masks(other) == callback.masks != first
    trained(other, data, tmp_path, callback)  # the same model holds its masks
    assert snip.held_masks(other) == callback.masks


def test_masks_of_an_older_training_in_the_same_place_are_refused(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 2}
    trained(gpt2(), words(), tmp_path / "work", Snip(sparsity=0.9), **saving)
    moved = tmp_path / "moved" / "checkpoint-2"
    shutil.copytree(tmp_path / "work" / "checkpoint-2", moved)
    shutil.rmtree(tmp_path / "work")
    trained(gpt2(), words(), tmp_path / "work", Snip(sparsity=0.5), **saving)
    resume = {"resume": str(moved), **saving}
    with pytest.raises(snip.InputError, match=r"it is of another training\. Give Snip\("):
        trained(gpt2(), words(), tmp_path / "work", Snip(sparsity=0.9), **resume)
    right = Snip(sparsity=0.9, masks=moved / "snip_masks.safetensors")
    model = gpt2()
    trained(model, words(), tmp_path / "work", right, **resume)
    assert snip.held_masks(model) == snip.Masks.load(moved / "snip_masks.safetensors")
    right.masks.check(model)


def prepared(seed):
    torch.manual_seed(seed)
    accelerator = accelerate.Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    data = TensorDataset(torch.randn(32, 8), torch.arange(32) % 4)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=8)
    )
    return accelerator, model, optimizer, loader


def test_a_checkpoint_that_is_loaded_too_late_is_an_error(tmp_path):
    accelerator, model, optimizer, loader = prepared(0)
    pruning = with_accelerate.Snip(accelerator, model, sparsity=0.8)
    masks = pruning.start(loader, optimizer)
    accelerator.save_state(str(tmp_path / "one"))
    accelerator.load_state(str(tmp_path / "one"))  # its own: nothing is lost

    accelerator, model, optimizer, loader = prepared(1)
    late = with_accelerate.Snip(accelerator, model, sparsity=0.8)
    assert late.start(loader, optimizer) != masks
    with pytest.raises(snip.InputError, match=r"load_state came after start\(\)"):
        accelerator.load_state(str(tmp_path / "one"))

    accelerator, model, optimizer, loader = prepared(2)
    right = with_accelerate.Snip(accelerator, model, sparsity=0.8)
    accelerator.load_state(str(tmp_path / "one"))
    assert right.start(loader, optimizer) == right.masks == masks


def test_what_stands_in_the_wrong_place_is_named():
    accelerator, model, _, _ = prepared(0)
    for given, sentence in (
        ((model, accelerator), "given a Sequential and an? Accelerator: it takes the accelerator"),
        ((accelerator, 0.9), "given an? Accelerator and a float"),
    ):
        with pytest.raises(snip.InputError, match=sentence):
            with_accelerate.Snip(*given)


def test_an_optimiser_that_trains_something_else_as_well_is_not_idle(recwarn):
    """As after accelerating in place: an emptied bias stays, and the rest are packed weights."""
    old, new = nn.Linear(4, 3), nn.Linear(4, 3)
    snip.Masks({"bias": torch.zeros(3, dtype=torch.bool)}).apply(old)
    snip.masks.holding.leave(old)
    optimizer = torch.optim.SGD([old.bias, new.weight], lr=0.1)
    new(torch.ones(2, 4)).sum().backward()
    after_step(optimizer, (), {})
    assert not [w for w in recwarn if w.category is snip.SnipWarning]
    optimizer.zero_grad()
    with pytest.warns(snip.SnipWarning, match="trains nothing"):
        after_step(optimizer, (), {})
