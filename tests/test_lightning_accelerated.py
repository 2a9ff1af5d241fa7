"""The callback for Lightning with `accelerate=True`: the same training, ordinary checkpoints."""

import pytest
import torch
from lightning_parts import Lit, Saving, _quiet, fitted, loader, trainer  # noqa: F401
from torch import nn

import snip
from snip.engine.kernels.library import available
from snip.integrations.lightning import Snip

needs_kernels = pytest.mark.skipif(not available(), reason="SNIP_NO_KERNELS is set")


@needs_kernels
@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_accelerated_it_is_the_same_training_and_leaves_an_ordinary_model(
    tmp_path, optimizer, monkeypatch
):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    dense, dense_work = fitted(tmp_path, Snip(sparsity=0.8), Lit(optimizer), steps=4)
    callback = Snip(sparsity=0.8, accelerate=True)
    torch.manual_seed(0)
    fast, work = fitted(tmp_path, callback, Lit(optimizer), steps=4)
    assert (dense.kinds, fast.kinds) == ({False}, {True})
    assert type(fast.net) is nn.Sequential
    assert type(fast.net[1]) is nn.Linear
    callback.masks.check(fast.net)
    assert callback.masks == snip.held_masks(fast.net)
    work.save_checkpoint(tmp_path / "fast.ckpt")
    dense_work.save_checkpoint(tmp_path / "dense.ckpt")
    states = [torch.load(tmp_path / f"{n}.ckpt", weights_only=True) for n in ("fast", "dense")]
    assert shapes(states[0]) == shapes(states[1])


def shapes(checkpoint):
    parts = [checkpoint["state_dict"], *checkpoint["optimizer_states"][0]["state"].values()]
    return [{k: getattr(v, "shape", None) for k, v in part.items()} for part in parts]


@needs_kernels
def test_a_checkpoint_of_an_accelerated_training_is_an_ordinary_one(tmp_path, monkeypatch):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    torch.manual_seed(0)
    module, first, data = Lit(), Snip(sparsity=0.8, accelerate=True), loader(shuffle=False)
    torch.manual_seed(1)
    trainer(tmp_path, first, Saving(tmp_path / "middle.ckpt", 5), steps=10).fit(module, data)
    saved = torch.load(tmp_path / "middle.ckpt", weights_only=True)
    state = saved["optimizer_states"][0]["state"]
    assert state[0]["exp_avg"].shape == (32, 64)
    assert not state[0]["exp_avg"][~first.masks["1.weight"]].any()
    plain = Lit()
    plain.load_state_dict(saved["state_dict"])  # without this library
    first.masks.check(plain.net)
    for fast in (True, False):  # it goes on sparse or dense
        second = Snip(sparsity=0.8, accelerate=fast)
        again, _ = fitted(
            tmp_path, second, steps=10, shuffle=False, ckpt_path=tmp_path / "middle.ckpt"
        )
        assert again.kinds == {fast}
        assert second.masks == first.masks
        torch.testing.assert_close(again.net[1].weight, module.net[1].weight, rtol=1e-3, atol=1e-4)


@needs_kernels
def test_an_exception_leaves_an_ordinary_model_too(tmp_path, monkeypatch):
    monkeypatch.setattr("snip.engine.accelerate.is_slower", lambda _: False)
    module = Lit(fail_at=3)
    with pytest.raises(RuntimeError, match="out of luck"):
        fitted(tmp_path, Snip(sparsity=0.8, accelerate=True), module)
    assert module.kinds == {True}
    assert type(module.net) is nn.Sequential
    snip.held_masks(module.net).check(module.net)
